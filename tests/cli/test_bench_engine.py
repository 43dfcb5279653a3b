# SPDX-License-Identifier: Apache-2.0
"""heat bench-engine and heat measure-noise on the clear engine: tables, files, refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from heatfhe.cli import main
from heatfhe.engine.noise import NoiseTable
from heatfhe.planning import CostTable


def test_bench_engine_writes_a_table_the_planner_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "costs.json"
    code = main(
        ["bench-engine", "clear", "--periods", "8,4096", "--levels", "1,8", "--repeats", "2", "--out", str(out)]
    )
    assert code == 0
    table = CostTable.load(out)
    assert set(table.bootstrap) == {8, 1024}  # 4096 is wider than the ring
    assert len(table.seconds["multiply"]) == 9
    assert (table.name, table.version) == ("costs", 2)
    assert "insecure-openfhe-11" in table.provenance
    assert "rotate_hoisted" in capsys.readouterr().out


def test_bench_engine_answers_scripts_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["bench-engine", "clear", "--json", "--quiet", "--levels", "1", "--repeats", "1", "--periods", ""]
    assert main([*arguments, "--processor-time"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert body["table"]["hardware"].endswith("processor time")
    assert len(body["encode"]) == len(body["table"]["seconds"]["drop"]) == 9
    assert body["table"]["pairs"].keys() == body["table"]["bootstrap"].keys()
    assert "cores" in body["table"]["hardware"]


def test_measure_noise_of_an_exact_engine_is_zero(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "noise.json"
    assert main(["measure-noise", "clear", "--magnitudes", "0.5,4", "--repeats", "1", "--out", str(out)]) == 0
    table = NoiseTable.load(out)
    assert table.sigma == {0.5: 0.0, 4.0: 0.0}
    assert "magnitude" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [
        ["bench-engine", "clear", "--params", "openfhe-3"],
        ["bench-engine", "clear", "--levels", "a"],
        ["bench-engine", "native", "--params", "insecure-openfhe-11"],
        ["bench-engine", "clear", "--processor-time", "--threads", "2"],
        ["measure-noise", "clear", "--magnitudes", "big"],
        ["measure-noise", "clear", "--magnitudes", "-1"],
        ["measure-noise", "clear", "--periods", "3"],
        ["measure-noise", "clear", "--periods", "few"],
    ],
)
def test_wrong_arguments_are_one_good_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 1
    assert capsys.readouterr().err.startswith("heat: ConfigError: ")
