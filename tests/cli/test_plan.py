# SPDX-License-Identifier: Apache-2.0
"""heat plan and heat drift: the tables a person reads, the JSON a script reads, the files they write."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from heatfhe.circuit import Circuit
from heatfhe.cli import main
from heatfhe.engine.noise import NoiseTable, PeriodNoise
from heatfhe.engine.openfhe.context import load_openfhe
from heatfhe.errors import EngineError, MissingExtraError
from heatfhe.planning import ALGORITHMS, PRECISION, Plan, faint_sums, plan
from tests.tiny import tiny_circuit

PARAMS = "insecure-native-11"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("circuits") / "tiny"
    tiny_circuit().save(path)
    return path


def test_plan_prints_and_writes(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "tiny.plan"
    assert main(["plan", str(folder), "--params", PARAMS, "--rotations", "-o", str(out)]) == 0
    text = capsys.readouterr().out
    for word in ("NO SECURITY", "layernorm", "argmax", "key switches", "rotations:", "levels along", "hatched"):
        assert word in text
    *_, generate, prompt, logits, sample, wrote, follow = text.splitlines()  # what is read first stands last
    assert "pt, masks, ct*ct: products with weights" in text
    assert generate.startswith("one generate step: ")
    assert "bootstraps" in generate
    for line, name in ((prompt, "prompt"), (logits, "logits"), (sample, "sample")):
        assert line.startswith(f"one {name} step: ")
    assert ("\ngenerate: " in text, "\nsample: " in text) == (True, False)  # a table each would say it twice
    assert wrote == f"wrote {out}"
    assert follow == f"next: heat serve {folder} --plan {out} --folder served --insecure"
    made = Plan.load(out)
    assert set(made.programs) == {"generate", "prompt", "logits", "sample"}  # clients may ask with a temperature
    assert made.circuit == tiny_circuit().digest


def test_plan_as_json_adds_up(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(folder), "--params", PARAMS, "--json", "--costs", "unit"]) == 0
    body = json.loads(capsys.readouterr().out)
    rows = body["programs"]["generate"]
    assert sum(r["seconds"] for r in rows) == sum(r["full"] + r["sparse"] for r in rows) > 0
    assert body["key_bytes"] > 0


def test_a_plan_for_a_gpu_has_its_prices_and_a_precise_one_says_what_it_keeps(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "tiny.plan"
    asked = ["plan", str(folder), "--params", "native-16-r40-lean", "--programs", "prompt", "-o", str(out)]
    cases = (
        (["--device", "cuda", "--precision", "8"], "native-16-r40-lean-h200", 8.0),
        ([], "native-16-r40-lean-h200", PRECISION),  # the set has no prices of a CPU
        (["--precision", "none", "--costs", "cheddar-h200"], "cheddar-h200", None),
    )
    for more, prices, bits in cases:
        assert main([*asked, *more]) == 0
        text, made = capsys.readouterr().out, Plan.load(out)
        assert f"prices: {prices} (" in text
        assert made.notes.get("precision") == bits
        assert ("prompt, refreshed values: " in text) is made.tight is (bits is not None)
        options = {"programs": ("prompt",), "cost": made.cost, "precision": bits}
        assert made == plan(str(folder), "native-16-r40-lean", **options)  # type: ignore[arg-type]
    with pytest.raises(SystemExit):
        main([*asked, "--precision", "some"])
    assert "takes a number of bits, or none, got 'some'" in capsys.readouterr().err


@pytest.mark.parametrize("params", [PARAMS, "insecure-native-13"])
def test_a_toy_plan_has_the_prices_of_a_cpu_and_names_it(
    params: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "tiny.plan"
    asked = ["plan", str(folder), "--params", params, "--programs", "prompt", "--mlp", "A", "--json", "-o", str(out)]
    assert main(asked) == 0
    shown = capsys.readouterr()
    body = json.loads(shown.out)
    assert body["prices"]["table"] == Plan.load(out).cost == f"native-cpu-{params[-2:]}"
    assert "H200" not in body["prices"]["hardware"]
    assert "warning" not in shown.err
    assert sum(r["seconds"] for r in body["programs"]["prompt"]) > 0


def test_prices_of_another_ring_are_said_to_be_so(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["plan", str(folder), "--params", PARAMS, "--programs", "prompt", "--mlp", "A"]
    assert main([*asked, "--device", "cuda"]) == 0
    shown = capsys.readouterr()
    assert "NVIDIA H200" in shown.out
    assert "cheddar-h200 prices a ring of 32768 slots and insecure-native-11 has 1024" in shown.err
    assert main([*asked, "--costs", "cheddar-h200"]) == 0
    assert "prices a ring" not in capsys.readouterr().err


def test_a_domain_too_wide_for_the_noise_of_a_refresh_is_named(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["--params", PARAMS, "--programs", "prompt", "--mlp", "A"]
    assert main(["plan", str(folder), *asked]) == 0
    assert "lost under encryption" not in capsys.readouterr().err
    circuit = Circuit.load(folder)
    name, c = next(iter(circuit.calibration.softmaxes.items()))
    fit = replace(c.fit, init=replace(c.fit.init, hi=c.fit.init.lo * 1e9))
    rows = {**circuit.calibration.softmaxes, name: replace(c, fit=fit)}
    wide = replace(circuit, calibration=replace(circuit.calibration, softmaxes=rows))
    assert list(faint_sums(wide, 1e-8)) == [f"{name}/init"]
    wide.save(tmp_path / "wide")
    assert main(["plan", str(tmp_path / "wide"), *asked]) == 0
    assert f"{name}/init: sums of its rows may be" in capsys.readouterr().err


def test_a_prefill_is_a_program_of_its_own_and_moves_nothing_else(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plans = [tmp_path / "a.plan", tmp_path / "b.plan"]
    for out, more in zip(plans, ([], ["--prefill", "16"])):
        assert main(["plan", str(folder), "--params", PARAMS, "-o", str(out), *more]) == 0
    text = capsys.readouterr().out
    assert text.count("encoded weights of one generate step") == 2
    assert "encoded weights of one prefill step" in text
    without, made = map(Plan.load, plans)
    assert (without.prefill, made.prefill) == (0, 16)
    assert {name: made.program(name) for name in without.programs} == dict(without.programs)


def test_compare_shows_every_placement_and_exact_is_least(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["plan", str(folder), "--params", PARAMS, "--compare", "--json", "--costs", "unit"]
    assert main([*arguments, "--programs", "generate"]) == 0
    body = json.loads(capsys.readouterr().out)
    seconds = {row["placement"]: row["seconds"] for row in body}
    assert set(seconds) == set(ALGORITHMS)
    assert seconds["exact"] == min(seconds.values())


def test_a_plan_that_cannot_be_made_says_what_would_help(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(folder), "--params", PARAMS, "--context", "99"]) == 1
    assert "context is 16" in capsys.readouterr().err
    assert main(["plan", str(folder), "--params", "nonsense"]) != 0


def test_plan_shows_openfhes_own_answer_beside_ours(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["plan", str(folder), "--params", "insecure-openfhe-11", "--placement", "greedy", "--mlp", "A"]
    assert main([*arguments, "--programs", "prompt"]) == 0
    (line,) = [t for t in capsys.readouterr().out.splitlines() if t.startswith("OpenFHE's own: ")]
    try:
        load_openfhe()
    except (MissingExtraError, EngineError):
        assert "not asked" in line
    else:
        assert "128 bits want ring dimension 131072 for this chain; 2048 is below it" in line


def test_drift_compares_circuits_on_the_same_windows(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokens = tmp_path / "windows.npy"
    np.save(tokens, np.random.default_rng(0).integers(0, 64, size=(3, 7)))
    arguments = ["drift", str(folder), str(folder), "--params", PARAMS, "--sigma", "1e-5"]
    assert main([*arguments, "--tokens", str(tokens), "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)
    assert first == second
    assert len(first["fidelity"]["kl_by_position"]) == 6
    assert 0 < first["fidelity"]["kl"] < 1e-3
    assert main([*arguments, "--windows", "2", "--positions", "4"]) == 0
    assert "collapsed" in capsys.readouterr().out


def test_drift_takes_several_noises_or_a_measured_table(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["drift", str(folder), "--params", PARAMS, "--windows", "2", "--positions", "4"]
    assert main([*arguments, "--sigma", "1e-6,1e-4", "--json"]) == 0
    small, large = json.loads(capsys.readouterr().out)
    assert (small["sigma"], large["sigma"]) == (1e-6, 1e-4)
    assert small["fidelity"]["kl"] < large["fidelity"]["kl"]
    sizes = {1.0: 2e-5}
    table = NoiseTable(
        name="made up", engine="clear", params=PARAMS, hardware="none", samples=1, sigma=sizes, constant=sizes,
        largest=sizes, periods={1: PeriodNoise(2e-5, 0.0)},
    )  # fmt: skip
    table.save(tmp_path / "noise.json")
    assert main([*arguments, "--noise", str(tmp_path / "noise.json"), "--json"]) == 0
    (measured,) = json.loads(capsys.readouterr().out)
    assert measured["sigma"] == pytest.approx(2e-5)
    assert small["fidelity"]["kl"] < measured["fidelity"]["kl"] < large["fidelity"]["kl"]
    assert main([*arguments, "--noise", str(tmp_path / "noise.json"), "--sigma", "1"]) == 1
    assert "give one" in capsys.readouterr().err
    replace(table, params="other").save(tmp_path / "other.json")
    assert main([*arguments, "--noise", str(tmp_path / "other.json")]) == 1
    assert "was measured on other" in capsys.readouterr().err
    assert main([*arguments, "--sigma", "loud"]) == 1
    assert "separated by commas, got 'loud'" in capsys.readouterr().err


def test_drift_plans_with_a_precision(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["drift", str(folder), "--params", PARAMS, "--windows", "4", "--positions", "6", "--sigma", "1e-4"]
    found = []
    for more in ([], ["--precision", "10"]):
        assert main([*arguments, *more, "--json"]) == 0
        found += json.loads(capsys.readouterr().out)
    quiet, loud = (f["fidelity"]["kl"] for f in found)
    assert 0 < loud < 0.8 * quiet  # values are carried larger


@pytest.mark.parametrize(
    ("options", "said"),
    [(["--params", "insecure-native-12", "--precision", "none"], True), (["--params", "insecure-native-12"], False),
     (["--params", "insecure-native-12-r40", "--precision", "none"], False)],
)  # fmt: skip
def test_plan_says_where_noise_may_choose_between_words(
    capsys: pytest.CaptureFixture[str], options: list[str], said: bool
) -> None:
    """Variances of the default argmax span 5.5e4; insecure-native-12 errs by 6e-8, the r40 set by 1.2e-8."""
    assert main(["plan", "default", "--programs", "generate", *options]) == 0
    assert ("a refresh may err by 3.3e-03 of a variance in the argmax" in capsys.readouterr().out) is said


def test_drift_plans_for_the_noise_it_makes(capsys: pytest.CaptureFixture[str]) -> None:
    """OpenFHE errs by 4e-8 of a bound. A plan for that refreshes a denominator in `h.0.attn` which may be as small as
    7.6e-5: under noise of 1.7e-4 it changed its sign in one window of these eight, with 78 % of their tokens left."""
    arguments = ["drift", "default-calibrated", "--params", "insecure-openfhe-12", "--precision", "8", "--seeds", "1"]
    assert main([*arguments, "--sigma", "1.7e-4", "--windows", "8", "--positions", "32", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["fidelity"]["collapsed"], found["bootstraps"]) == (0, 49)  # 47 without a precision
    assert found["fidelity"]["top1"] >= 0.99


def test_drift_rounds_products_where_asked(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["drift", str(folder), "--params", "insecure-native-11", "--windows", "2", "--positions", "4"]
    arguments += ["--sigma", "0"]
    found = []
    for more in ([], ["--rounding"], ["--rounding"]):
        assert main([*arguments, *more, "--json"]) == 0
        found += json.loads(capsys.readouterr().out)
    plain, rounded, again = found
    assert "rounding" not in plain
    assert rounded["rounding"] is True
    assert rounded == again
    assert plain["fidelity"]["kl"] < 1e-20 < rounded["fidelity"]["kl"] < 1e-8
    assert main([*arguments, "--rounding", "--by-value"]) == 1
    assert "leave --rounding out" in capsys.readouterr().err


def test_drift_draws_where_matplotlib_is_installed(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="figures need matplotlib")
    picture = tmp_path / "drift.png"
    arguments = ["drift", str(folder), "--params", PARAMS, "--sigma", "1e-4", "--windows", "2", "--positions", "4"]
    assert main([*arguments, "--figure", str(picture)]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_drift_by_value_ranks_values_and_goes_on(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["drift", str(folder), "--params", PARAMS, "--by-value", "--only", "softmax_refine,linear"]
    arguments += ["--windows", "2", "--positions", "3", "--seeds", "1", "--sigma", "1e-4", "-o", str(tmp_path)]
    assert main([*arguments, "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    kls = [v["fidelity"]["kl"] for v in found["values"]]
    assert kls == sorted(kls, reverse=True)
    assert {v["operator"] for v in found["values"]} <= {"softmax", "linear"}
    kept = json.loads((tmp_path / "by-value.json").read_text())["body"]["circuits"]
    assert kept == [found]
    assert main(arguments) == 0
    text = capsys.readouterr().out
    assert f"{found['values'][0]['name']} amplifies most" in text
    assert "relative error of attention rows" in text


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--only", "dropout"], "'dropout': no such family; have the operators layernorm"),
        (["--only", "argmax"], "these plans refresh nothing of it; they refresh"),
        (["-o", "somewhere"], "give both or neither"),
    ],
)
def test_drift_refuses_what_cannot_be_told_apart(
    folder: Path, more: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["drift", str(folder), "--params", PARAMS, "--windows", "1", "--positions", "2", *more]) == 1
    assert words in capsys.readouterr().err
