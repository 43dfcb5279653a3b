# SPDX-License-Identifier: Apache-2.0
"""heat compare and heat sweep on two workers of a Ray started here: circuits and rows of a local run, byte for byte."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="heat compare trains")

from heatfhe.cli import main
from heatfhe.cli.comparison import Comparison, _kept
from heatfhe.training import recipe
from tests.cli.test_train import answer
from tests.cli.test_train import model as model


def shared(command: str, model: Path, *more: str) -> list[str]:
    arguments = [command, str(model), "--text", str(model / "text.txt"), "--recipe", "tiny", "--share", "0.2"]
    return [*arguments, "--windows", "3", "--json", *more]


def here(arguments: list[str], out: Path) -> Any:
    """A run of one process with one thread, as the tasks of a cluster have."""
    command = [sys.executable, "-m", "heatfhe.cli", *arguments, "-o", str(out)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    return json.loads(done.stdout)


def circuits(out: Path) -> dict[str, bytes]:
    """Every file of every circuit in a run folder."""
    return {str(p.relative_to(out)): p.read_bytes() for p in out.rglob("circuit/*") if p.is_file()}


def untimed(body: Any) -> Any:
    """A result without the seconds that training took."""
    if isinstance(body, dict):
        return {key: untimed(value) for key, value in body.items() if key not in ("seconds", "tables")}
    return [untimed(value) for value in body] if isinstance(body, list) else body


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    ray = pytest.importorskip("ray", reason="it needs the ray extra")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([*sys.path, os.environ.get("PYTHONPATH", "")]))
    options = {"include_dashboard": False, "object_store_memory": 80 << 20, "log_to_driver": False}
    ray.init(address="local", num_cpus=2, logging_level="ERROR", **options)
    yield
    ray.shutdown()


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(
    ("command", "more", "made"),
    [
        ("compare", ["--presets", "heat,fixed-counts", "--rules", "per-site", "--stress", "1"], 6),
        ("sweep", ["--vary", "heat.lambda_iter=0.3,1.2"], 3),
    ],
)
def test_two_workers_make_the_rows_of_one_process(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, more: list[str], made: int
) -> None:
    """fixed-counts needs the counts that heat ends with: its task begins after that one's end."""
    arguments = shared(command, model, *more)
    alone = here(arguments, tmp_path / "here")
    assert main([*arguments, "-o", str(tmp_path / "there"), "--ray", "local"]) == 0
    assert untimed(answer(capsys)) == untimed(alone)
    found = circuits(tmp_path / "there")
    assert len({Path(name).parts[0] for name in found}) == made
    assert found == circuits(tmp_path / "here")
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "there").rglob("circuit/*")}
    assert (
        main([*arguments, "-o", str(tmp_path / "there"), "--ray", "local"]) == 0
    )  # all is there: nothing is made again
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "there").rglob("circuit/*")} == before


def test_what_a_process_has_loaded_serves_its_next_row() -> None:
    """Tasks bring equal copies; another folder is another comparison."""
    first, equal = (Comparison(model="m", out=Path("out"), base=recipe("tiny")) for _ in range(2))
    assert first is not equal
    assert _kept(first) is first
    assert _kept(equal) is first
    other = replace(first, out=Path("elsewhere"))
    assert _kept(other) is other


def test_a_cluster_counts_its_own_processes(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = shared("compare", model, "-o", str(tmp_path / "c"), "--ray", "local", "--processes", "2")
    assert main(arguments) == 1
    assert "the cluster's cores say how many" in capsys.readouterr().err
    assert not (tmp_path / "c").exists()


def test_without_the_extra_it_says_what_to_install(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "heatfhe.evaluation.ray_tasks", raising=False)
    assert main(shared("compare", model, "-o", str(tmp_path / "c"), "--ray", "local")) == 3
    assert "heatfhe[ray]" in capsys.readouterr().err
