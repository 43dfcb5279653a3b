# SPDX-License-Identifier: Apache-2.0
"""heat sweep and the transplant preset on a two-layer model: points, figures, resumption, refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="heat sweep trains")

from heatfhe.circuit import Circuit
from heatfhe.cli import main
from heatfhe.cli.points import disagreements, field_names, interval, make_points, parse_axes, varied
from heatfhe.errors import ConfigError
from heatfhe.files import read_json
from heatfhe.training import recipe
from tests.cli.test_train import answer
from tests.cli.test_train import model as model

AXES = {"heat.lambda_iter": [0.3, 0.6, 1.2], "prior_end": [0.8, 0.9, 0.95]}


def arguments(model: Path, out: Path, *more: str) -> list[str]:
    shared = ["sweep", str(model), "--text", str(model / "text.txt"), "--recipe", "tiny", "--share", "0.2"]
    return [*shared, "--windows", "3", "-o", str(out), "--json", *more]


def test_points_are_those_of_the_paper() -> None:
    """Nine combinations at one seed, one of them the recipe itself, and three further seeds."""
    base = recipe("tiny")
    points = make_points(base, AXES, [0, 1, 2, 3], cross=False)
    assert len(points) == 9 + 3
    assert [p.name for p in points[:4]] == [f"recipe seed {seed}" for seed in range(4)]
    assert points[0].values == {"heat.lambda_iter": base.heat.lambda_iter, "prior_end": base.prior_end}
    assert {p.seed for p in points[4:]} == {0}
    assert len({p.recipe.digest for p in points}) == len({p.name for p in points}) == 12
    one = next(p for p in points if p.values == {"heat.lambda_iter": 1.2, "prior_end": 0.8})
    assert (one.recipe.heat.lambda_iter, one.recipe.prior_end, one.recipe.seed) == (1.2, 0.8, 0)
    assert one.recipe.squeeze == base.squeeze
    assert len(make_points(base, AXES, [0, 1, 2, 3], cross=True)) == 9 * 4


def test_fields_of_every_kind_can_be_varied() -> None:
    base = recipe("tiny")
    assert {"margin", "squeeze.distil", "cooldown.updates", "solver", "odd_kinds"} <= set(field_names(base))
    assert not {"seed", "name", "heat"} & set(field_names(base))
    axes = parse_axes(["squeeze.distil=false", "delta_2=null,4", "solver=relaxed", "heat.lr=1e-4"])
    assert axes == {"squeeze.distil": [False], "delta_2": [None, 4], "solver": ["relaxed"], "heat.lr": [1e-4]}
    made = varied(base, {name: values[0] for name, values in axes.items()})
    assert (made.squeeze.distil, made.delta_2, made.solver, made.heat.lr) == (False, None, "relaxed", 1e-4)


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("lambda_iter=1", "no field 'lambda_iter'; did you mean squeeze.lambda_iter or heat.lambda_iter"),
        ("luck=1", "no field 'luck'; have: context, squeeze.updates"),
        ("heat=1", "no field 'heat'"),
        ("seed=1,2", "no field 'seed'"),
        ("gap=often", "wrong kind"),
        ("gap=1.5", "wrong kind"),
        ("margin=99", "margin lies in"),
        ("solver=quick", "unknown solver 'quick'"),
        ("gap", "FIELD=VALUE"),
        ("gap=1,,2", "FIELD=VALUE"),
    ],
)
def test_what_cannot_be_varied_is_refused_before_anything_is_trained(
    option: str, words: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "sweep"
    assert main(arguments(model, out, "--vary", option)) == 1
    assert words in capsys.readouterr().err
    assert not out.exists()


def test_a_field_given_twice() -> None:
    with pytest.raises(ConfigError, match="gap is given twice"):
        parse_axes(["gap=1", "gap=2"])


def test_the_interval_is_student_s() -> None:
    assert interval([3.0]) == (3.0, 0.0)
    mean, half = interval([1.0, 2.0, 3.0, 4.0])
    assert mean == 2.5
    assert half == pytest.approx(3.182 * (5 / 3) ** 0.5 / 2, rel=1e-3)


def test_a_sweep_makes_every_point_once_and_draws(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "sweep"
    given = arguments(model, out, "--vary", "heat.lambda_iter=0.6,3", "--seeds", "0,1")
    assert main(given) == 0
    body = answer(capsys)
    names = [point["name"] for point in body["points"]]
    assert names == ["recipe seed 0", "recipe seed 1", "heat.lambda_iter=3 seed 0"]
    assert [p["values"]["heat.lambda_iter"] for p in body["points"]] == [0.6, 0.6, 3]
    for point in body["points"]:
        circuit = Circuit.load(out / point["name"].replace(" ", "-") / "circuit")
        assert circuit.calibration.counts() == point["counts"]
        assert point["row"]["iterations"] == circuit.calibration.iterations()
        assert len(point["course"]) >= 1
    differ = {
        site: [a, b]
        for (site, a), b in zip(body["points"][0]["counts"].items(), body["points"][1]["counts"].values())
        if a != b
    }
    assert body["seeds_differ_at"] == differ
    assert read_json(out / "sweep.json", "heatfhe-sweep", (1,)) == body
    assert names[2] in (out / "sweep.md").read_text()
    pytest.importorskip("matplotlib", reason="figures are drawn by matplotlib")
    for figure in ("sensitivity.png", "seeds.png"):
        assert (out / figure).read_bytes().startswith(b"\x89PNG")
    before = {p: p.stat().st_mtime_ns for p in out.rglob("circuit.json")}
    assert len(before) == 3
    assert main(given) == 0
    assert answer(capsys) == body
    assert {p: p.stat().st_mtime_ns for p in out.rglob("circuit.json")} == before
    assert main([*given, "--share", "0.3"]) == 1
    assert "another model, text or recipe" in capsys.readouterr().err


def test_a_transplant_takes_counts_from_one_row_and_the_rest_from_another(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "compare"
    given = ["compare", str(model), "--text", str(model / "text.txt"), "--recipe", "tiny", "--share", "0.2"]
    given += ["--windows", "3", "-o", str(out), "--json"]
    given += ["--rules", "per-site", "--stress", "0"]
    assert main([*given, "--presets", "transplant,heat,squeezed"]) == 0
    names = [row["name"] for row in answer(capsys)["rows"]]
    assert names[5:] == [
        *(f"transplant-{kind} plain seed 0" for kind in ("squeezed", "calibrated")),
        *(f"{kind} plain seed 0" for kind in ("heat", "squeezed")),
    ]

    def circuit(name: str) -> Circuit:
        return Circuit.load(out / name / "circuit")

    learned = circuit("heat-plain-seed-0").calibration.counts()
    for kind, parent in (("squeezed", "squeezed-plain-seed-0"), ("calibrated", "calibrated-1e-04-plain")):
        made, below = circuit(f"transplant-{kind}-plain-seed-0"), circuit(parent)
        assert made.calibration.counts() == learned
        assert made.with_counts(below.calibration.counts()).calibration == below.calibration
        assert all((made.weights[name] == below.weights[name]).all() for name in below.weights)
    assert main([*given, "--presets", "heat,transplant"]) == 1
    assert "needs the row 'squeezed plain seed 0'; add it to --presets" in capsys.readouterr().err


def test_sites_that_differ_are_named() -> None:
    class One:
        def __init__(self, counts: dict[str, int]) -> None:
            self.counts = counts

    results: Any = [One({"a": 1, "b": 2}), One({"a": 1, "b": 3})]
    assert disagreements(results) == {"b": [2, 3]}
    assert disagreements(results[:1]) == disagreements([]) == {}
    assert json.loads(json.dumps(disagreements(results))) == {"b": [2, 3]}
