# SPDX-License-Identifier: Apache-2.0
"""heat evaluate on two workers of a Ray started here: the windows and the fidelity of a local run, byte for byte."""

from __future__ import annotations

import json
import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heatfhe.cli import main
from heatfhe.engine.noise import NoiseTable, PeriodNoise
from heatfhe.errors import ConfigError, MissingExtraError
from heatfhe.evaluation import spread
from tests.tiny import tiny_circuit

PARAMS = "insecure-openfhe-11"


def logits(folder: Path) -> dict[str, bytes]:
    """The logits of every window that a run kept, by its name."""
    found = {}
    for path in folder.rglob("window-*.npz"):
        with np.load(path, allow_pickle=False) as held:
            found[path.name] = held["logits"].tobytes()
    return found


def strip(evaluation: dict[str, Any]) -> dict[str, Any]:
    """An evaluation without its times."""
    return {k: v for k, v in evaluation.items() if k not in ("seconds", "by_operator")}


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "heatfhe.evaluation.ray_tasks", raising=False)
    with pytest.raises(MissingExtraError, match=r"heatfhe\[ray\]"):
        spread(abs, [1], ray="local")


def test_windows_on_a_cluster_need_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny_circuit(layers=1, width=16, vocabulary=32, context=16).save(tmp_path / "tiny")
    assert main(["evaluate", str(tmp_path / "tiny"), "--params", PARAMS, "--ray", "local"]) == 1
    assert "--ray needs -o FOLDER" in capsys.readouterr().err


def dies_once(folder: str, number: int) -> int:
    """A task whose process is killed the first time it has the number 2."""
    mark = Path(folder) / f"tried-{number}"
    if number == 2 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if number == 9:
        raise ConfigError("nine is refused")
    return 10 * number


def needs_others(folder: str, number: int) -> int:
    """A task that leaves a file, and counts those it finds."""
    Path(folder, f"did-{number}").touch()
    return len(list(Path(folder).glob("did-*")))


@pytest.mark.slow
def test_two_workers_give_the_logits_and_the_fidelity_of_a_local_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With injected noise, which is seeded per window. A task whose process is killed runs again; an error ends all."""
    ray = pytest.importorskip("ray", reason="it needs the ray extra")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([*sys.path, os.environ.get("PYTHONPATH", "")]))
    tiny_circuit(layers=1, width=16, vocabulary=32, context=16).save(tmp_path / "tiny")
    NoiseTable(
        name="n", engine="openfhe", params=PARAMS, hardware="h", samples=1, sigma={1.0: 1e-4, 100.0: 1e-2},
        constant={1.0: 0.0, 100.0: 0.0}, largest={1.0: 0.0, 100.0: 0.0}, periods={1024: PeriodNoise(1e-4, 0.0)},
    ).save(tmp_path / "noise.json")  # fmt: skip
    arguments = ["evaluate", str(tmp_path / "tiny"), "--params", PARAMS, "--windows", "5", "--positions", "3"]
    arguments += ["--noise", str(tmp_path / "noise.json"), "--seed", "3", "--json"]
    assert main([*arguments, "-o", str(tmp_path / "here")]) == 0
    here = json.loads(capsys.readouterr().out)
    options = {"include_dashboard": False, "object_store_memory": 80 << 20, "log_to_driver": False}
    ray.init(address="local", num_cpus=2, logging_level="ERROR", **options)
    try:
        assert main([*arguments, "-o", str(tmp_path / "there"), "--ray", "local"]) == 0
        there = json.loads(capsys.readouterr().out)
        assert spread(partial(dies_once, str(tmp_path)), [1, 2, 3], ray="local") == [10, 20, 30]
        assert (tmp_path / "tried-2").exists()
        with pytest.raises(ConfigError, match="nine is refused"):
            spread(partial(dies_once, str(tmp_path)), [1, 9], ray="local")
        last, *_ = spread(partial(needs_others, str(tmp_path)), [0, 1, 2, 3], ray="local", after={0: [2, 3], 2: [1]})
        assert last == 4  # it is given first and does its work last
        with pytest.raises(ConfigError, match=r"not among them: \[7\]"):
            spread(abs, [0, 1], ray="local", after={0: [7]})
        with pytest.raises(ConfigError, match=r"wait for each other: \[0, 1\]"):
            spread(abs, [0, 1, 2], ray="local", after={0: [1], 1: [0]})
    finally:
        ray.shutdown()
    assert len(logits(tmp_path / "here")) == 5
    assert logits(tmp_path / "there") == logits(tmp_path / "here")
    assert [strip(e) for e in there["evaluations"]] == [strip(e) for e in here["evaluations"]]
    assert there["evaluations"][0]["largest_error"] > 1e-5  # noise was there
