# SPDX-License-Identifier: Apache-2.0
"""A whole run: counts fall, logs hold every update once, presets freeze what they say, bad input is refused."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from heatfhe.errors import ConfigError, TrainingError
from heatfhe.lowering import export
from heatfhe.planning import Carried
from heatfhe.planning import preset as parameter_set
from heatfhe.sites import Prepared, load_prepared, prepare, save_prepared
from heatfhe.training import Trained, Windows, ablation, cut, loop, read_log, recipe, train
from heatfhe.training.constants import fixed_counts, merge
from heatfhe.training.losses import Terms
from heatfhe.training.train import _digest, with_odd
from tests.gpt2_tiny import tiny_gpt2, worst
from tests.training.short import CONTEXT, fresh, go, same_weights, short, windows

Run = tuple[Prepared, Trained, Path]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("whole")
    prepared = fresh()
    return prepared, go(prepared, recipe("tiny"), folder, tensorboard=True, argmax=True), folder


def test_iterations_fall_and_quality_holds(whole: Run) -> None:
    prepared, trained, folder = whole
    lines = read_log(folder)
    shown = [x["iterations"] for x in lines if x["kind"] == "update" and x["phase"] == "heat"]
    assert shown[0] > 100  # halting starts at the top of every support
    assert sum(trained.iterations.values()) == shown[-1] < sum(trained.seed_iterations.values()) < shown[0]
    held = [x["loss"] for x in lines if x["kind"] == "validation"]
    assert trained.validation == held[-1] < held[0]
    assert trained.calibration.counts() == prepared.counts() == prepared.modes()
    assert trained.calibration.fingerprint == prepared.fingerprint()
    assert prepared.mode == "deployed"
    assert all(p.requires_grad for p in prepared.weights())


def test_the_log_holds_every_update_once(whole: Run) -> None:
    _, trained, folder = whole
    lines = read_log(folder)
    updates = [x for x in lines if x["kind"] == "update"]
    assert [x["step"] for x in updates] == list(range(1, 35))
    assert trained.updates == 34
    assert [x["phase"] for x in updates] == ["squeeze"] * 6 + ["heat"] * 24 + ["cooldown"] * 4
    for line in updates:
        assert {"task", "iter", "range", "iterations", "lr", "tokens_per_second", "skipped", "finite"} <= set(line)
    (calibrated,) = [x for x in lines if x["kind"] == "calibrated"]
    assert calibrated["iterations"] == dict(trained.seed_iterations)
    laws = [x for x in lines if x["kind"] == "distributions"]
    assert [x["step"] for x in laws] == [16, 26, 30]
    assert set(laws[0]["p"]) == set(trained.calibration.counts())
    for law in (p for x in laws for p in x["p"].values()):
        assert sum(law) == pytest.approx(1.0, abs=1e-4)
    assert [x["step"] for x in lines if x["kind"] == "validation"] == [6, 12, 18, 24, 30, 34]


def test_tensorboard_holds_the_same_scalars(whole: Run) -> None:
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    _, _, folder = whole
    read = events.EventAccumulator(str(folder / "tensorboard"))
    read.Reload()
    wanted = [x["task"] for x in read_log(folder) if x["kind"] == "update"]
    assert [e.value for e in read.Scalars("update/task")] == pytest.approx(wanted, rel=1e-6)


def test_tensorboard_holds_every_sites_distribution(whole: Run) -> None:
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    _, trained, folder = whole
    read = events.EventAccumulator(str(folder / "tensorboard"), size_guidance={events.HISTOGRAMS: 0})
    read.Reload()
    laws = [x for x in read_log(folder) if x["kind"] == "distributions"]
    for name in trained.calibration.counts():
        shown = read.Histograms(f"distributions/{name}")
        assert [e.step for e in shown] == [x["step"] for x in laws]
        for event, line in zip(shown, laws):
            assert event.histogram_value.bucket == pytest.approx(line["p"][name])
            mean = sum(k * p for k, p in enumerate(line["p"][name]))
            assert event.histogram_value.sum == pytest.approx(mean)
        assert [e.value for e in read.Scalars(f"modes/{name}")] == [x["modes"][name] for x in laws]


def test_the_result_is_a_plain_checkpoint_and_a_circuit(whole: Run, tmp_path: Path) -> None:
    prepared, trained, _ = whole
    circuit = export(prepared, trained.calibration, tmp_path / "circuit", tokenizer=None, name="tiny")
    tokens = windows(count=4).rows[:, :-1]
    assert worst(circuit.run(tokens), prepared.logits(torch.from_numpy(tokens), dtype="float64")) < 1e-9
    save_prepared(prepared, tmp_path / "model")
    model = type(prepared.model).from_pretrained(tmp_path / "model").eval()
    again = load_prepared(tmp_path / "model", model)
    assert again.counts() == prepared.counts()
    assert again.halting.dump() == prepared.halting.dump()


def test_the_same_seed_gives_the_same_run_and_another_does_not() -> None:
    runs = [fresh() for _ in range(3)]
    for prepared, seed in zip(runs, (0, 0, 1)):
        go(prepared, short(seed=seed))
    assert same_weights(runs[0], runs[1])
    assert not same_weights(runs[0], runs[2])


def test_depth_only_learns_counts_and_no_weight() -> None:
    prepared, before = fresh(), fresh()
    base = recipe("tiny")
    trained = go(prepared, ablation("depth-only", replace(base, heat=replace(base.heat, updates=12))))
    assert same_weights(prepared, before)
    assert trained.calibration.counts() == prepared.modes()
    assert trained.iterations != trained.seed_iterations
    assert all(p.requires_grad for p in prepared.weights())  # frozen for the run alone


def test_fixed_counts_keep_their_share_or_their_total() -> None:
    prepared = fresh()
    trained = go(prepared, ablation("fixed-counts", short(fixed_share=0.5)))
    full = go(fresh(), ablation("fixed-counts", short(fixed_share=1.0)))
    before = sum(full.iterations.values())
    assert sum(trained.iterations.values()) == round(0.5 * before)
    assert trained.calibration.counts() == fixed_counts(full.calibration, round(0.5 * before))
    assert not same_weights(prepared, fresh())
    exact = go(fresh(), ablation("fixed-counts", short(fixed_total=before - 7)))
    assert sum(exact.iterations.values()) == before - 7


def test_counts_are_cut_evenly_and_stop_at_the_floors() -> None:
    full = go(fresh(), ablation("fixed-counts", short(fixed_share=1.0))).calibration
    before = full.counts()
    half = fixed_counts(full, sum(full.iterations().values()) // 2)
    for name, count in half.items():
        assert abs(count - 0.5 * before[name]) <= 1.0, name
    floors = full.floors()
    assert fixed_counts(full, 0) == floors
    assert fixed_counts(full, 10**6) == before


@pytest.mark.parametrize("name", ["squeezed", "control"])
def test_calibrated_presets_meet_the_tolerance_after_training(name: str) -> None:
    prepared = fresh()
    trained = go(prepared, ablation(name, short()))
    assert trained.seed_iterations == {}
    for norm in trained.calibration.norms.values():
        assert norm.fit.error(norm.goldschmidt_count, norm.newton_count) <= 1e-4
    assert not same_weights(prepared, fresh())


def test_noise_changes_the_run_and_is_repeatable() -> None:
    runs = [fresh() for _ in range(3)]
    architecture = runs[0].architecture
    carried = Carried(architecture.stages, architecture.shape, parameter_set("insecure-paper-12"))
    found = [go(p, short(noise=sigma), carried=carried) for p, sigma in zip(runs, (0.0, 1e-2, 1e-2))]
    assert same_weights(runs[1], runs[2])
    assert found[1].validation == found[2].validation != found[0].validation
    assert not same_weights(runs[0], runs[1])


def test_the_relaxed_solver_reaches_every_site() -> None:
    trained = go(fresh(), short(solver="relaxed"))
    assert {c.fit.denominator.solver for c in trained.calibration.norms.values()} == {"relaxed"}
    pairs = {(c.fit.init.solver, c.fit.refine.solver) for c in trained.calibration.softmaxes.values() if c.fit.refine}
    assert pairs == {("below", "relaxed")}


def test_accumulation_changes_nothing_but_rounding(tmp_path: Path) -> None:
    go(fresh(), short(), tmp_path / "one")
    go(fresh(), short(micro_tokens=2 * CONTEXT, patience=4), tmp_path / "four")  # four micro-batch steps an update
    one, four = ([x["task"] for x in read_log(tmp_path / f) if x["kind"] == "update"] for f in ("one", "four"))
    assert four[:2] == pytest.approx(one[:2], rel=1e-4, abs=1e-7)
    assert four == pytest.approx(one, rel=1e-2, abs=1e-4)


def test_non_finite_batches_are_counted_and_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = loop.losses, []

    def poisoned(*args: Any, **options: Any) -> Terms:
        calls.append(1)
        terms = real(*args, **options)
        return replace(terms, task=terms.task * math.nan) if len(calls) in (3, 4) else terms

    monkeypatch.setattr(loop, "losses", poisoned)
    prepared = fresh()
    trained = go(prepared, short(), tmp_path)
    assert trained.skipped == 2
    assert all(bool(torch.isfinite(p).all()) for p in prepared.weights())
    updates = [x for x in read_log(tmp_path) if x["kind"] == "update"]
    assert [x["finite"] for x in updates] == [True, True, False, False, True, True, True, True]
    assert [x["task"] is None for x in updates] == [not x["finite"] for x in updates]
    for line in (tmp_path / "log.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=pytest.fail)  # no NaN: any JSON reader can read it


def test_a_collapsing_run_stops_and_names_the_site(tmp_path: Path) -> None:
    base = short()
    wild = replace(base, heat=replace(base.heat, updates=60, lr=30.0, final_lr=30.0))
    with pytest.raises(TrainingError, match=r"heat: the run has collapsed.*First to leave.*: (h\.\d|ln_f)\S*: input"):
        go(fresh(), wild, tmp_path)
    assert len([x for x in read_log(tmp_path) if x["kind"] == "update"]) >= loop.PATIENCE_FOR_COLLAPSE


def test_a_run_without_finite_batches_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = fresh()
    with torch.no_grad():
        prepared.model.transformer.h[1].ln_2.weight[3] = math.nan
    monkeypatch.setattr(loop, "PATIENCE_FOR_COLLAPSE", 2)
    with pytest.raises(TrainingError, match=r"squeeze: .*: h\.1\.mlp\S*: its input holds values that are not finite"):
        go(prepared, short())


def test_bad_input_is_refused() -> None:
    prepared = fresh()
    with pytest.raises(ConfigError, match="the windows hold 16 tokens, the recipe's context is 128"):
        go(prepared, recipe("default-model"))
    wide = cut(np.arange(32 * 4 + 1) % 48, 32)
    with pytest.raises(ConfigError, match="context 32 exceeds the model's 16"):
        train(prepared, wide, short(context=32))
    foreign = cut(np.arange(16 * 4 + 1) % 49, 16)
    with pytest.raises(ConfigError, match="ids up to 48 do not fit the model's vocabulary of 48"):
        train(prepared, foreign, short())


@pytest.mark.parametrize("kind", ["FSDP", "DEEPSPEED"])
def test_other_launchers_are_refused_with_the_way_to_do_it(kind: str) -> None:
    from accelerate.utils import DistributedType

    class Launched:
        distributed_type = DistributedType[kind]

    with pytest.raises(ConfigError, match=f"{kind}: launch with torchrun alone.*splits the weights"):
        go(fresh(), short(), accelerator=Launched())


def test_an_unsupported_nonlinearity_is_named() -> None:
    with pytest.raises(ConfigError, match="mish"):
        prepare(tiny_gpt2(0, activation_function="mish"))


def test_merge_keeps_constants_whose_ranges_still_fit(whole: Run) -> None:
    calibration = whole[1].calibration
    assert merge(calibration, calibration) == calibration
    name, row = next(iter(calibration.softmaxes.items()))
    far = replace(row.observed_init, hi=2 * row.fit.init.hi)
    fitted = replace(row, observed_init=far, fit=replace(row.fit, init=replace(row.fit.init, hi=3 * row.fit.init.hi)))
    seen = replace(calibration, softmaxes={**calibration.softmaxes, name: fitted})
    assert merge(calibration, seen).softmaxes[name].fit.init.hi == 3 * row.fit.init.hi
    norm_name, norm = next(iter(calibration.norms.items()))
    moved = replace(norm, observed=replace(norm.observed, hi=2 * norm.fit.hi))
    seen = replace(calibration, norms={**calibration.norms, norm_name: moved})
    assert merge(calibration, seen).norms[norm_name] == moved


def test_a_model_in_training_mode_runs_without_dropout() -> None:
    runs = []
    for training in (False, True):
        model = tiny_gpt2(1, width=32, resid_pdrop=0.5, embd_pdrop=0.5, attn_pdrop=0.5)
        model.train(training)
        prepared = prepare(model)
        go(prepared, short())
        runs.append(prepared)
    assert same_weights(*runs)


def test_held_out_windows_that_diverge_are_counted_and_the_site_is_named() -> None:
    prepared = fresh(vocab_size=50, tie_word_embeddings=False)
    strange = 49  # the training text walks over 48 tokens: nothing calibrated on it knows this one
    with torch.no_grad():
        prepared.model.get_parameter("transformer.wte.weight")[strange] *= 1e3
    held_out = windows(seed=1, count=8)
    held_out.rows[3, 5] = strange
    trained = go(prepared, short(), held_out=held_out)
    assert trained.diverged == 1
    assert trained.deployed == math.inf
    assert trained.left.startswith("h.0.ln_1/goldschmidt: input ")


def test_a_wider_margin_reaches_every_calibration_of_a_run() -> None:
    ends = {}
    for margin in (1.2, 2.0):
        trained = go(fresh(), replace(short(margin=margin), squeeze=replace(short().squeeze, updates=0)))
        norms = trained.calibration.norms.values()
        ends[margin] = [c.fit.hi / c.observed.hi for c in norms]
        assert trained.diverged == 0
    assert ends[2.0] == pytest.approx([2.0] * len(ends[2.0]))
    assert ends[1.2] == pytest.approx([1.2] * len(ends[1.2]))


@pytest.mark.parametrize(
    ("solver", "share", "kept"), [("plain", 0.98, True), ("plain", 1.02, False), ("relaxed", 0.98, True)]
)
def test_merge_moves_a_second_reciprocal_alone_and_only_where_its_domain_was_left(
    whole: Run, solver: str, share: float, kept: bool
) -> None:
    calibration = whole[1].calibration
    name, row = next(iter(calibration.softmaxes.items()))
    assert row.fit.refine is not None
    assert row.observed_refine is not None
    relaxed = replace(row, fit=replace(row.fit, refine=replace(row.fit.refine, solver=solver)))
    trained = replace(calibration, softmaxes={**calibration.softmaxes, name: relaxed})
    end = share * row.fit.refine.hi  # seen so near to the end of the domain
    wider = replace(relaxed.fit.refine, hi=max(row.fit.refine.hi, 1.2 * end))
    again = replace(
        relaxed,
        fit=replace(relaxed.fit, refine=wider, init=replace(row.fit.init, hi=1.01 * row.fit.init.hi)),
        observed_refine=replace(row.observed_refine, hi=end),
    )
    merged = merge(trained, replace(trained, softmaxes={**trained.softmaxes, name: again})).softmaxes[name]
    assert merged.fit.init == relaxed.fit.init
    assert merged.fit.refine == (relaxed.fit.refine if kept else wider)


@pytest.mark.parametrize(("shift", "share", "kept"), [(-0.6, 1.2, True), (0.6, 0.9, False), (0.0, 0.9, True)])
def test_merge_compares_row_sums_about_one_midpoint(whole: Run, shift: float, share: float, kept: bool) -> None:
    """Sums of e^((s - midpoint) / 2) about a midpoint 0.6 lower are 1.35 times those about the trained one."""
    calibration = whole[1].calibration
    name, row = next(iter(calibration.softmaxes.items()))
    assert row.fit.delta_2 == 2
    moved = replace(row.fit, lo=row.fit.lo + shift, hi=row.fit.hi + shift)
    again = replace(row, fit=moved, observed_init=replace(row.observed_init, hi=share * row.fit.init.hi))
    merged = merge(calibration, replace(calibration, softmaxes={**calibration.softmaxes, name: again}))
    assert merged.softmaxes[name].fit == (row.fit if kept else moved)


@pytest.mark.parametrize("shift", [-3.0, -1.0, 1.0, 3.0])
def test_merge_carries_a_first_reciprocal_to_a_new_window_of_scores(whole: Run, shift: float) -> None:
    """About another midpoint a row's sum of e^((s - midpoint) / 2), and with it the domain, changes by one factor."""
    calibration = whole[1].calibration
    name, row = next(iter(calibration.softmaxes.items()))
    seen = replace(row.observed, lo=row.fit.lo + 0.1 * shift, hi=row.fit.hi + 0.1 * shift)  # on one side they left it
    by = math.exp(-shift / row.fit.delta_2)
    tight = replace(row.fit.init, hi=0.6 * by * row.fit.init.hi)
    moved = replace(row.fit, lo=row.fit.lo + shift, hi=row.fit.hi + shift, init=tight)
    again = replace(
        row, fit=moved, observed=seen, observed_init=replace(row.observed_init, hi=0.5 * by * row.fit.init.hi)
    )
    merged = merge(calibration, replace(calibration, softmaxes={**calibration.softmaxes, name: again}))
    made = merged.softmaxes[name]
    assert (made.fit.lo, made.fit.hi) == (moved.lo, moved.hi)
    assert made.fit.init.hi == pytest.approx(by * row.fit.init.hi)
    assert made.fit.init.lo == pytest.approx(by * row.fit.init.lo)
    assert made.observed_init.hi == pytest.approx(0.5 * by * row.fit.init.hi)
    assert made.fit.refine == row.fit.refine
    assert made.init_count == row.init_count


def test_merge_keeps_what_was_seen_below_a_domain(whole: Run) -> None:
    """The constants stay; a plan must know how large the reciprocals of smaller sums become."""
    calibration = whole[1].calibration
    name, row = next(iter(calibration.softmaxes.items()))
    assert row.fit.refine is not None
    assert row.observed_refine is not None
    again = replace(
        row,
        observed_init=replace(row.observed_init, lo=0.5 * row.fit.init.lo),
        observed_refine=replace(row.observed_refine, lo=0.2 * row.fit.refine.lo),
    )
    merged = merge(calibration, replace(calibration, softmaxes={**calibration.softmaxes, name: again}))
    assert merged.softmaxes[name].fit == row.fit
    assert merged.softmaxes[name].met(0) == (row.fit.init, pytest.approx(0.5 * row.fit.init.lo))
    assert merged.softmaxes[name].met(1) == (row.fit.refine, pytest.approx(0.2 * row.fit.refine.lo))


def test_slack_holds_a_rows_sum_further_inside(whole: Run) -> None:
    prepared, trained, _ = whole
    row = next(iter(trained.calibration.softmaxes.values()))
    site = next(m for m in prepared.model.modules() if type(m).__name__ == "AttentionSite")
    sums = torch.tensor([[0.3], [0.8], [1.2]], dtype=torch.float64) * row.fit.init.hi
    try:
        prepared.set_mode("training", halting="hard")
        free = site.solvers(torch.ones(3, 1, dtype=torch.float64), sums)[0](sums)
        prepared.switch.slack = 2.0
        held = site.solvers(torch.ones(3, 1, dtype=torch.float64), sums)[0](sums)
        middle = site.solvers(torch.ones(3, 1, dtype=torch.float64), sums)[0](sums * 0 + 0.5 * row.fit.init.hi)
    finally:
        prepared.switch.slack = 1.0
        prepared.set_mode("deployed")
    assert held[0] == free[0]
    assert torch.equal(held[1:], middle[1:])


def test_slack_holds_the_sum_of_squares_too_but_not_below_what_was_seen_nor_at_the_row_length(whole: Run) -> None:
    prepared, trained, _ = whole
    row = next(iter(trained.calibration.softmaxes.values()))
    site = next(m for m in prepared.model.modules() if type(m).__name__ == "AttentionSite")
    assert row.fit.refine is not None
    assert row.observed_refine is not None
    end, seen = row.fit.refine.hi, row.observed_refine.hi
    longer = math.ceil(end) + 1
    try:
        for slack in (1.0, 1.05, 8.0):
            prepared.switch.slack = slack
            assert site.ends(longer) == (row.fit.init.hi / slack, min(end, max(end / slack, seen)))
            assert site.ends(math.floor(end))[1] == end  # such a domain cannot be left
        assert seen < end
        assert site.ends(longer)[1] == seen
    finally:
        prepared.switch.slack = 1.0


def test_odd_windows_widen_the_calibration_and_teach_every_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    """One in five windows: calibration and phases see their share, and the control learns from its parent on them."""
    seen: dict[str, list[float]] = {}
    own = loop.losses

    def watched(*arguments: Any, odd: torch.Tensor, **more: Any) -> Terms:
        _, _, teacher, rows, phase = arguments[:5]
        assert teacher is not None
        assert torch.equal(odd, torch.tensor([tuple(row) not in text for row in rows.tolist()]))
        seen.setdefault(phase.halting, []).extend(odd.float().tolist())
        return own(*arguments, odd=odd, **more)

    monkeypatch.setattr(loop, "losses", watched)
    text = {tuple(row) for row in windows().rows.tolist()}
    half = short(odd_share=0.2, calibration_windows=10)
    trained = go(fresh(), half)
    for kind, wanted in (("none", 2 * 8), ("soft", 4 * 8), ("hard", 2 * 8)):
        assert len(seen[kind]) == wanted
        assert 0 < np.mean(seen[kind]) < 0.45
    seen.clear()
    go(fresh(), ablation("control", half))
    assert 0 < np.mean(seen["none"]) < 0.45
    mixed = with_odd(windows().split(8)[0], half, 48)
    assert mixed.odd is not None
    odd = min(half.odd_calibration // 2, int(mixed.odd.sum()))
    assert trained.calibration.sequences == 10 + odd + half.odd_calibration // 2
    monkeypatch.undo()
    plain = go(fresh(), short(odd_share=0.0, calibration_windows=10))
    assert any(
        c.observed.hi != plain.calibration.norms[name].observed.hi for name, c in trained.calibration.norms.items()
    )


def test_without_odd_windows_a_run_is_what_it_was() -> None:
    """Text alone is not mixed, and has the digest of a checkpoint from before."""
    text = windows()
    assert with_odd(text, short(odd_share=0.0), 48) is text
    assert _digest(text) == hashlib.sha256(text.rows.tobytes()).hexdigest()
    assert _digest(text.mixed(text.rows[:2])) != _digest(Windows(text.mixed(text.rows[:2]).rows))
