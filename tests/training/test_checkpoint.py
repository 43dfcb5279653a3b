# SPDX-License-Identifier: Apache-2.0
"""Law 9 for training: kill a run anywhere, start it again, same bits, nothing lost; foreign checkpoints are refused."""

from __future__ import annotations

import errno
import json
import logging
import os
import resource
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from heatfhe.errors import ConfigError, FileFormatError, TrainingError
from heatfhe.files import file_digest, write_json
from heatfhe.planning import Carried
from heatfhe.planning import preset as parameter_set
from heatfhe.sites import Prepared
from heatfhe.training import Recipe, Stopped, Trained, ablation, checkpoint, read_log
from tests.training.short import KillAt, Killed, fresh, go, same_weights, short, windows

# Calls of the reporter in a short run: squeeze, calibration, heat, re-fit, cooldown, re-fit. One every few calls is
# enough to meet each phase at its start, in its midst, at its end, and each preparation between them.
RECIPE = short()
Straight = tuple[Prepared, Trained, Path, int]


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Straight:
    folder, prepared, reporter = tmp_path_factory.mktemp("straight"), fresh(), KillAt()
    return prepared, go(prepared, RECIPE, folder, reporter=reporter), folder, reporter.calls


def comparable(folder: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in line.items() if k != "tokens_per_second"} for line in read_log(folder)]


def assert_same(a: tuple[Prepared, Trained, Path], b: tuple[Prepared, Trained, Path]) -> None:
    assert same_weights(a[0], b[0])
    assert a[0].counts() == b[0].counts()
    assert a[0].halting.dump() == b[0].halting.dump()
    assert a[1].calibration.as_json() == b[1].calibration.as_json()
    for name in ("validation", "updates", "skipped", "seed_iterations"):
        assert getattr(a[1], name) == getattr(b[1], name)
    assert comparable(a[2]) == comparable(b[2])


@pytest.mark.parametrize("share", [0.02, 0.06, 0.2, 0.35, 0.45, 0.55, 0.62, 0.75, 0.9, 0.99])
def test_a_killed_run_ends_bit_for_bit_the_same(straight: Straight, share: float, tmp_path: Path) -> None:
    whole, trained, folder, calls = straight
    with pytest.raises(Killed):
        go(fresh(), RECIPE, tmp_path, reporter=KillAt(max(1, round(share * calls))))
    prepared = fresh()
    again = go(prepared, RECIPE, tmp_path)
    assert_same((prepared, again, tmp_path), (whole, trained, folder))


def test_killed_again_and_again(straight: Straight, tmp_path: Path) -> None:
    for n in (2, 5, 9, 14, 20):
        with pytest.raises(Killed):
            go(fresh(), RECIPE, tmp_path, reporter=KillAt(n))
    prepared = fresh()
    assert_same((prepared, go(prepared, RECIPE, tmp_path), tmp_path), straight[:3])


@pytest.mark.parametrize("name", ["depth-only", "fixed-counts", "control"])
def test_presets_resume_too(name: str, tmp_path: Path) -> None:
    chosen = ablation(name, RECIPE)
    whole, counted = fresh(), KillAt()
    trained = go(whole, chosen, tmp_path / "a", reporter=counted)
    with pytest.raises(Killed):
        go(fresh(), chosen, tmp_path / "b", reporter=KillAt(round(0.6 * counted.calls)))
    prepared = fresh()
    assert_same((prepared, go(prepared, chosen, tmp_path / "b"), tmp_path / "b"), (whole, trained, tmp_path / "a"))


def test_noise_resumes_too_and_only_at_the_same_sizes(tmp_path: Path) -> None:
    noisy, architecture = replace(RECIPE, noise=1e-2), fresh().architecture
    sizes, others = (
        {"carried": Carried(architecture.stages, architecture.shape, parameter_set(name))}
        for name in ("insecure-openfhe-12", "insecure-native-12")
    )
    whole, counted = fresh(), KillAt()
    trained = go(whole, noisy, tmp_path / "a", reporter=counted, **sizes)
    with pytest.raises(Killed):
        go(fresh(), noisy, tmp_path / "b", reporter=KillAt(round(0.95 * counted.calls)), **sizes)
    with pytest.raises(TrainingError, match="another noise"):
        go(fresh(), noisy, tmp_path / "b", **others)
    prepared = fresh()
    again = go(prepared, noisy, tmp_path / "b", **sizes)
    assert_same((prepared, again, tmp_path / "b"), (whole, trained, tmp_path / "a"))
    with pytest.raises(ConfigError, match="noise has no size by itself"):
        go(fresh(), noisy, tmp_path / "c")


def test_counts_above_the_families_own_survive_the_cooldown(tmp_path: Path) -> None:
    """Large scores ask for counts past a family's own largest; a re-fit calibration alone does not say how large."""
    whole, counted = fresh(initializer_range=0.4), KillAt()
    trained = go(whole, RECIPE, tmp_path / "a", reporter=counted)
    assert max(s.max_count for s in whole.sites if s.family == "softmax_init") > 9
    with pytest.raises(Killed):
        go(fresh(initializer_range=0.4), RECIPE, tmp_path / "b", reporter=KillAt(counted.calls - 1))
    prepared = fresh(initializer_range=0.4)
    assert_same((prepared, go(prepared, RECIPE, tmp_path / "b"), tmp_path / "b"), (whole, trained, tmp_path / "a"))


def test_asked_to_stop_it_saves_and_goes_on(straight: Straight, tmp_path: Path) -> None:
    asked = iter([False, False, False, True])
    with pytest.raises(Stopped):
        go(fresh(), RECIPE, tmp_path, stop=lambda: next(asked))
    assert json.loads((tmp_path / "checkpoint" / "state.json").read_text())["body"]["position"]["step"] == 4
    prepared = fresh()
    assert_same((prepared, go(prepared, RECIPE, tmp_path), tmp_path), straight[:3])


def test_a_finished_run_only_finishes_again(straight: Straight) -> None:
    prepared, reporter = fresh(), KillAt()
    again = go(prepared, RECIPE, straight[2], reporter=reporter)
    assert_same((prepared, again, straight[2]), straight[:3])
    assert reporter.calls < straight[3]


class FillDisk(KillAt):
    """From its nth call on, no file of this process can grow past a size: what a full disk looks like."""

    size = 6000

    def _tick(self) -> None:
        self.calls += 1
        if self.calls == self.n:
            resource.setrlimit(resource.RLIMIT_FSIZE, (self.size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def test_a_full_disk_keeps_the_previous_checkpoint(straight: Straight, tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        with pytest.raises(TrainingError, match=r"could not be written.*the previous one is intact"):
            go(fresh(), RECIPE, tmp_path, reporter=FillDisk(n=round(0.55 * straight[3])))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["checkpoint", "log.jsonl"]
    prepared = fresh()
    assert_same((prepared, go(prepared, RECIPE, tmp_path), tmp_path), straight[:3])


def test_a_full_disk_under_the_log_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(TrainingError, match=r"log\.jsonl: cannot be written"):
        go(fresh(), RECIPE, tmp_path)


def test_a_kill_between_the_two_renames_of_a_save(
    straight: Straight, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = os.replace, []

    def dies(src: Any, dst: Any) -> None:
        calls.append(str(dst))
        real(src, dst)
        if str(dst).endswith(".old"):
            os._exit(9)  # no finally block runs

    pid = os.fork()
    if pid == 0:  # pragma: no cover - the child that dies
        monkeypatch.setattr(os, "replace", dies)
        go(fresh(), RECIPE, tmp_path)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9
    assert not (tmp_path / "checkpoint").exists()
    prepared, reporter = fresh(), KillAt()
    trained = go(prepared, RECIPE, tmp_path, reporter=reporter)
    assert reporter.calls < straight[3]  # it did not start over
    assert_same((prepared, trained, tmp_path), straight[:3])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["checkpoint", "log.jsonl"]


def begun(tmp_path: Path, recipe: Recipe = RECIPE) -> Path:
    with pytest.raises(Stopped):
        go(fresh(), recipe, tmp_path, stop=lambda: True)
    return tmp_path


def test_a_checkpoint_of_something_else_is_refused(tmp_path: Path) -> None:
    folder = begun(tmp_path)
    before = (folder / "checkpoint" / "state.json").read_bytes()
    with pytest.raises(TrainingError, match="belongs to another model"):
        go(fresh(seed=2), RECIPE, folder)
    with pytest.raises(TrainingError, match="belongs to another recipe"):
        go(fresh(), replace(RECIPE, seed=1), folder)
    from heatfhe.training import train

    with pytest.raises(TrainingError, match="belongs to another text"):
        train(fresh(), windows(seed=9), RECIPE, folder=folder, tensorboard=False)
    assert (folder / "checkpoint" / "state.json").read_bytes() == before
    assert read_log(folder)  # nothing lost


@pytest.mark.parametrize("name", [checkpoint.WEIGHTS, checkpoint.OPTIMIZER, checkpoint.STATE])
def test_an_altered_checkpoint_is_refused(tmp_path: Path, name: str) -> None:
    path = begun(tmp_path) / "checkpoint" / name
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(bytes(raw))
    with pytest.raises(FileFormatError, match=name):
        go(fresh(), RECIPE, tmp_path)
    path.write_bytes(bytes(raw[: len(raw) // 2]))
    with pytest.raises(FileFormatError, match=name):
        go(fresh(), RECIPE, tmp_path)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run stopped in its second phase: calibrated, with moments, halting logits and targets."""
    folder, asked = tmp_path_factory.mktemp("stopped"), iter([False, False, False, True])
    with pytest.raises(Stopped):
        go(fresh(), RECIPE, folder, stop=lambda: next(asked))
    return folder


def resealed(folder: Path, change: Any) -> None:
    """Change a checkpoint's tensors or state, and make every hash right again."""
    body = json.loads((folder / checkpoint.STATE).read_text())["body"]
    tensors = {name: load_file(folder / name) for name in (checkpoint.WEIGHTS, checkpoint.OPTIMIZER)}
    change(body, *tensors.values())
    for name, values in tensors.items():
        save_file(values, folder / name)
        if name in body["files"]:
            body["files"][name] = file_digest(folder / name)
    write_json(folder / checkpoint.STATE, checkpoint.KIND, checkpoint.VERSION, body)


NORM, MATRIX = "transformer.h.0.ln_1.weight", "transformer.h.1.attn.c_attn.weight"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda body, w, o: w.pop(NORM), f"{NORM} is missing"),
        (lambda body, w, o: w.update(more=w[NORM].clone()), "more is not a tensor of this model"),
        (lambda body, w, o: w.update({NORM: w[NORM][:-1].clone()}), "has another shape"),
        (lambda body, w, o: w.update({NORM: w[NORM].double()}), "not a tensor of this model"),
        (lambda body, w, o: w[MATRIX].view(-1)[3].fill_(float("nan")), "not finite"),
        (lambda body, w, o: w.update({"lm_head.weight": w["transformer.wte.weight"] + 1}), "differs from the weight"),
        (lambda body, w, o: (body["files"].clear(), w[MATRIX].add_(1)), "has the hashes of"),
        (lambda body, w, o: o.pop("0.0.exp_avg"), "the moments of parameter 0.0"),
        (lambda body, w, o: o["0.1.exp_avg_sq"].neg_(), "the moments of parameter 0.1"),
        (lambda body, w, o: o.update({"9.9.exp_avg": o["0.0.exp_avg"].clone()}), "a parameter nobody trains"),
        (lambda body, w, o: body["optimizer"].pop("0.2"), "the moments of parameter 0.2"),
        (lambda body, w, o: body["position"].update(phase="later"), "unknown phase 'later'"),
        (lambda body, w, o: body["position"].update(rows=-1), "rows is a count"),
        (lambda body, w, o: body["position"].update(step=True), "of the wrong kind"),
        (lambda body, w, o: body["counts"].popitem(), "counts or logits of other sites"),
        (lambda body, w, o: body["logits"].popitem(), "counts or logits of other sites"),
        (lambda body, w, o: next(iter(body["logits"].values())).__setitem__(0, 1e300), "counts or logits"),
        (lambda body, w, o: body.update(surprise=1), "unexpected keyword"),
    ],
)
def test_a_checkpoint_that_does_not_fit_the_model_is_refused(
    stopped: Path, tmp_path: Path, change: Any, message: str
) -> None:
    """Every hash is right: names, shapes, types, ranges and completeness are what is left to check."""
    shutil.copytree(stopped, tmp_path, dirs_exist_ok=True)
    resealed(tmp_path / "checkpoint", change)
    with pytest.raises(FileFormatError, match=message):
        go(fresh(), RECIPE, tmp_path)


def test_another_machine_is_warned_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    begun(tmp_path)
    monkeypatch.setattr(checkpoint, "machine", lambda: {"torch": "0.4", "threads": 64, "machine": "pdp11"})
    with caplog.at_level(logging.WARNING):
        go(fresh(), RECIPE, tmp_path)
    assert any("pdp11" in r.message and "last bits" in r.message for r in caplog.records)
