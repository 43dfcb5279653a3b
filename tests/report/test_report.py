# SPDX-License-Identifier: Apache-2.0
"""The report: every kind of run is read, every figure has words and data, nothing is fetched, words are escaped."""

from __future__ import annotations

import itertools
import json
import math
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heatfhe.assets import sampled_stories
from heatfhe.circuit import Circuit
from heatfhe.cli import main
from heatfhe.errors import ConfigError, FileFormatError
from heatfhe.evaluation.fidelity import log_softmax
from heatfhe.planning import cost_table
from heatfhe.planning.params import preset
from heatfhe.report import Material, gather, quality, render
from heatfhe.report.charts import depth_map, iterations, latency
from heatfhe.report.gather import telling_sites, training_facts
from heatfhe.report.svg import Axis, Series, chart_lines, decades, ticks
from heatfhe.report.words import GLOSSARY
from tests.report.runs import save_circuits, save_everything, save_training

PARAMS = "insecure-native-11"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return save_everything(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def found(runs: list[Path]) -> Material:
    return gather(runs, params=preset(PARAMS), costs=cost_table("unit"), perplexity=lambda c: 8.0, measured_on="a text")


@pytest.fixture(scope="module")
def priced(runs: list[Path]) -> Material:
    """The same, planned by prices in seconds."""
    return gather(runs, params=preset(PARAMS), costs=cost_table("native-cpu-11"))


@pytest.fixture(scope="module")
def page(found: Material) -> str:
    return render(found, title="a <title>", versions=[("heatfhe", "0")], commands=["heat report x"])


class Reader(HTMLParser):
    """Checks nesting, and collects ids and what they are referred to by."""

    VOID = ("meta", "link", "br")  # of HTML; what SVG leaves empty closes itself

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.used: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.tags.append((tag, found))
        if found.get("id"):
            self.ids.append(str(found["id"]))
        self.used += (found.get("aria-labelledby") or "").split()
        if (found.get("href") or "").startswith("#"):
            self.used.append(str(found["href"])[1:])
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_gather_reads_every_kind(found: Material) -> None:
    assert [c.name for c in found.circuits] == ["calibrated", "heat"]
    assert [p.name for p in found.plans] == ["calibrated", "heat"]
    assert len(found.trainings) == len(found.evaluations) == len(found.drifts) == len(found.demos) == 1
    assert len(found.comparisons) == len(found.stresses) == 1
    full, fewer = found.circuits
    assert sum(fewer.iterations().values()) < sum(full.iterations().values())
    assert fewer.solver_levels < full.solver_levels
    assert found.plans[1].bootstraps <= found.plans[0].bootstraps


def test_page_is_whole_and_refers_only_to_itself(page: str) -> None:
    reader = Reader()
    reader.feed(page)
    assert reader.open == []
    names = [i for i in reader.ids if i != "hatch"]  # the hatch pattern stands in every drawing, all the same
    assert len(names) == len(set(names))
    assert set(reader.used) <= set(reader.ids)
    assert not re.search(r"https?://|@import|<script|src=", page.replace("&lt;script&gt;", ""))


def test_every_drawing_has_words_and_data(page: str) -> None:
    drawings = re.findall(r"<figure>.*?</figure>", page, flags=re.S)
    assert len(drawings) >= 10
    for drawing in drawings:
        assert re.search(r'role="img" aria-labelledby=', drawing)
        assert re.search(r"<title id=[^>]+>[^<]+</title><desc id=[^>]+>[^<]{10,}</desc>", drawing)
        assert drawing.count("<td>") + drawing.count('<th scope="row">') >= 2


def test_page_shows_every_section_the_issue_names(page: str) -> None:
    keys = "summary quality compare server iterations training levels latency fidelity stress drift parameters made"
    for key in (*keys.split(), "versions", "glossary"):
        assert f'<section id="{key}"' in page, key
    assert "NO SECURITY" in page
    assert "Insecure toy parameters" in page


def test_quality_names_parent_control_calibrated_and_heat(found: Material) -> None:
    rows = {row[0]: row[1:] for row in quality.quality_rows(found) if "compare" in row[3]}
    assert {name: row[0] for name, row in rows.items()} == {
        "parent, exact": 9.0,
        "calibrated": 11.0,
        "control": 9.5,
        "HEAT, mean of 2": 12.5,
    }
    assert rows["HEAT, mean of 2"][1] == 22.5
    assert rows["control"][1] is None
    trained = {row[0]: row[1] for row in quality.quality_rows(found) if "training" in row[3]}
    assert trained["parent, exact"] == pytest.approx(math.exp(1.5))
    assert trained["training, as deployed"] == pytest.approx(math.exp(1.6))
    noisy = [row for row in quality.quality_rows(found) if row[3] == "1 window, with noise 0.0001 at every bootstrap"]
    assert noisy[0][:3] == ("heat", 3.0, 3.0)
    assert ("heat", 8.0, None, "a text") in quality.quality_rows(found)


def test_bootstraps_and_levels_have_one_count(found: Material, page: str) -> None:
    """What the summary, the tiles and the side-by-side table say is the plan's own of one generated token."""
    headers, rows = quality.cost_rows(found)
    beside = {row[0]: row[1:3] for row in quality.side_by_side(found)}
    for i, (circuit, plan) in enumerate(zip(found.circuits, found.plans)):
        said = dict(zip(headers, rows[i]))
        assert said["bootstraps per token"] == plan.bootstraps == beside["bootstraps per token"][i]
        assert said["levels per token"] == sum(t.levels for t in plan.operators) == beside["levels per token"][i]
        assert said["iterations per token"] == sum(circuit.iterations().values())
    assert page.count(">bootstraps per token<") == 3  # a tile, a header, a row of the comparison
    assert "bootstraps up to the logits" in page
    assert "bootstraps/token" not in page


def test_a_request_is_reconciled_with_its_prediction(priced: Material) -> None:
    told = quality.times(priced)
    assert told is not None
    plan = priced.plans[-1]
    assert plan.prompt_seconds is not None
    rows = {row[0]: row[1] for row in told.rows}
    whole = 3 * plan.prompt_seconds + 3 * plan.seconds
    assert rows["predicted, the whole request"] == pytest.approx(whole)
    assert rows["measured by the server"] == 50.0
    assert rows["between server and client"] == pytest.approx(2.5)
    assert f"({50.0 / whole:.2f} times that)" in told.summary
    assert rows["of it in bootstraps"] < plan.seconds
    assert told.operators == [
        ("softmax", 4.0, 7.0, 3.0, "100%"),
        ("head", 1.0, 0.0, -1.0, "-33%"),
        ("linear", 4.0, 5.0, 1.0, "33%"),
        ("all", 9.0, 12.0, 3.0, "100%"),
    ]


def test_time_has_its_section(priced: Material) -> None:
    page = render(priced, title="t", versions=[], commands=[])
    assert '<section id="time"' in page
    assert "Where the difference goes" in page


def test_counts_without_seconds_are_not_called_time(found: Material) -> None:
    assert found.plans[0].prices.unit != "s"
    assert quality.times(found) is None
    assert '<section id="time"' not in render(found, title="t", versions=[], commands=[])


def test_stress_is_a_file_or_what_the_circuit_remembers(found: Material, tmp_path: Path) -> None:
    assert quality.stress_rows(found) == [("heat", "repeated", 30, 2, 5, 1)]
    assert quality.lost(found, found.circuits[1]) == "2 of 30"
    assert quality.lost(found, found.circuits[0]) is None
    noted = {"random": {"windows": 8, "diverged": 1, "outside": 2, "faint": 3}}
    replace(Circuit.load(save_circuits(tmp_path)[0]), notes={"stress": noted}).save(tmp_path / "noted")
    assert quality.stress_rows(gather([tmp_path / "noted"])) == [("calibrated", "random", 8, 1, 2, 3)]


def test_settings_say_what_differs(tmp_path: Path) -> None:
    found = gather([save_training(tmp_path / "a"), save_training(tmp_path / "b", seed=7)])
    headers, rows = quality.settings(found)
    assert headers == ("setting", "a", "b", "differs")
    told = {row[0]: row[1:] for row in rows}
    assert told["seed"] == (0, 7, "yes")
    assert told["command"] == ("heat train m -o run", "heat train m -o run", "no")
    assert told["commit of heatfhe"][0] == "c0" * 20
    assert told["corpus"][0] == "corpus.txt"
    assert told["squeeze: lr"] == (2e-4, 2e-4, "no")
    page = render(found, title="t", versions=[], commands=[])
    assert page.count('<tr class="differs">') == 1


def test_pictures_show_values_to_a_pointer(found: Material) -> None:
    """Every bar, point and level has its value as a title, which needs no script."""
    drawn = iterations(found.circuits).svg
    full, fewer = found.circuits
    for circuit in (full, fewer):
        count = circuit.iterations()["norm_newton"]
        assert f"<title>norms, Newton: {count} iterations in {circuit.name}</title>" in drawn
    sites = depth_map(found.circuits).svg
    assert sites.count("</title></rect>") == 2 * len(full.sites)
    line = chart_lines("k", "t", "w", [Series("a", [0.0, 1.0], [2.0, 3.5])], x_title="update", y_title="nats")
    assert "<title>a, update 1: 3.5 nats</title>" in line
    long = chart_lines("k", "t", "w", [Series("a", list(range(5000)), [1.0] * 5000)], x_title="x", y_title="y")
    assert long.count('class="spot"') < 200


def test_a_claim_is_a_list_that_wraps_and_every_word_is_explained(page: str) -> None:
    claim = preset(PARAMS).security_claim
    assert f'<dt>security claim</dt><dd class="claim">{claim}</dd>' in page
    for word, _ in GLOSSARY:
        assert f"<dt>{word}</dt>" in page
    for header in ("bootstraps per token", "levels per token", "perplexity", "diverge", "faint"):
        assert any(part in word for word, _ in GLOSSARY for part in (header.split(" per")[0].removesuffix("s"),)), (
            header
        )


def test_words_are_escaped(page: str) -> None:
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "<h1>a &lt;title&gt;</h1>" in page


def test_figures_carry_the_circuits_numbers(found: Material) -> None:
    full, fewer = found.circuits
    figure = iterations(found.circuits)
    assert figure.rows[-1] == ("all", sum(full.iterations().values()), sum(fewer.iterations().values()))
    sites = depth_map(found.circuits)
    assert len(sites.rows) == len(full.sites)
    assert sites.rows[0][1:] == (full.sites[0].count, fewer.sites[0].count)
    priced = latency(found.plans)
    assert sum(r[4] for r in priced.rows if r[1] == "heat") == pytest.approx(found.plans[1].seconds)
    assert sum(r[2] for r in priced.rows if r[1] == "heat") == found.plans[1].bootstraps
    assert 'class="hatched"' in priced.svg


def test_large_numbers_compare_the_first_circuit_with_the_last(page: str, found: Material) -> None:
    tiles = re.search(r'<ul class="tiles">.*?</ul>', page, flags=re.S)
    assert tiles is not None
    full, fewer = (sum(c.iterations().values()) for c in found.circuits)
    assert f'<span class="was">{full} → </span><span class="now">{fewer}</span>' in tiles.group()


def test_a_circuit_keeps_its_colour_and_a_noise_its_dash(found: Material) -> None:
    twice = replace(found, drifts=[*found.drifts, {**found.drifts[0], "sigma": 1e-2}])
    page = render(twice, title="t", versions=[], commands=[])
    drift = page[page.index('<section id="drift"') : page.index('<section id="parameters"')]
    assert 'class="line s1 d0"' in drift  # heat is the second circuit
    assert 'class="line s1 d1"' in drift
    assert "heat, noise 0.0001" in drift
    assert "heat, noise 0.01" in drift


def test_runs_of_one_name_are_told_apart(tmp_path: Path) -> None:
    first, second = save_circuits(tmp_path)
    for name, source in (("a", first), ("b", second)):
        replace(Circuit.load(source), name="default-heat").save(tmp_path / name / "circuit")
    found = gather([tmp_path / "a" / "circuit", tmp_path / "b"], params=preset(PARAMS), costs=cost_table("unit"))
    assert [c.name for c in found.circuits] == ["default-heat", "default-heat (b)"]
    assert [p.name for p in found.plans] == ["default-heat", "default-heat (b)"]
    page = render(found, title="t", versions=[], commands=[])
    assert "not planned" not in page


def test_training_log_survives_a_half_line(tmp_path: Path) -> None:
    facts = training_facts(save_training(tmp_path / "run"))
    assert (len(facts.updates), len(facts.validations), len(facts.distributions)) == (40, 4, 4)
    assert facts.calibrated is not None
    assert {s.rpartition("/")[2] for s in telling_sites(facts)} == {"goldschmidt", "newton", "init", "refine"}


def test_what_cannot_be_read_is_refused_with_advice(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"holds no log\.jsonl"):
        gather([tmp_path])
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(FileFormatError, match="neither a plan"):
        gather([tmp_path / "x.json"])
    with pytest.raises(FileFormatError, match="not a readable JSON file"):
        gather([tmp_path / "missing.json"])


def test_command_writes_a_page_and_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib", reason="PNG figures need the report extra")
    runs = [*save_circuits(tmp_path), save_training(tmp_path / "training")]
    out = tmp_path / "deep" / "report.html"
    figures = tmp_path / "figures"
    arguments = [
        *map(str, runs),
        "--params",
        PARAMS,
        "--costs",
        "unit",
        "--figures",
        str(figures),
        "-o",
        str(out),
        "--json",
    ]
    assert main(["report", *arguments]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert out.stat().st_size == answer["bytes"]
    assert sorted(p.name for p in figures.glob("*.png")) == sorted(Path(p).name for p in answer["figures"])
    assert {"depth-map.png", "training-counts-per-layer.png", "training-validation.png"} <= {
        p.name for p in figures.iterdir()
    }
    assert all(p.read_bytes().startswith(b"\x89PNG") for p in figures.glob("*.png"))


def test_command_measures_perplexity(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On the embedded stories where the tokenizer is theirs, on --text where one is given, and not at all otherwise."""
    out = tmp_path / "r.html"
    words = ["report", "default", "--params", "none", "--windows", "1", "-o", str(out), "--json"]
    assert main(words) == 0
    circuit = Circuit.from_pretrained("default")
    tokens = circuit.encode("\n".join(sampled_stories()[-40:]))[: circuit.room]
    logs = log_softmax(circuit.run(np.asarray([tokens[:-1]])))[0]
    wanted = math.exp(-np.mean([row[t] for row, t in zip(logs, tokens[1:])]))
    assert f"<span>{wanted:.4g}</span>" in out.read_text()
    assert "<h3>On 1 window of the last of the embedded stories</h3>" in out.read_text()
    (tmp_path / "own.txt").write_text("The cat sat on the mat. " * 60)
    assert main([*words, "--text", str(tmp_path / "own.txt")]) == 0
    assert f"<h3>On 1 window of {tmp_path / 'own.txt'}</h3>" in out.read_text()
    unmeasured = ["--params", "none", "--windows", "0", *words[-3:]]
    assert main(["report", "default-calibrated", *unmeasured]) == 0
    assert '<section id="quality"' not in out.read_text()
    assert main(["report", "default", *unmeasured]) == 0
    assert '<section id="quality"' in out.read_text()  # what its training log says of the parent and of itself
    capsys.readouterr()
    assert main([*words, "--text", str(tmp_path / "gone.txt")]) == 1
    assert "no such file; give --text" in capsys.readouterr().err


def test_report_needs_no_torch() -> None:
    code = "import sys, heatfhe.report, heatfhe.cli.report; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@given(lo=st.floats(-1e4, 1e4), span=st.floats(1e-2, 1e6), count=st.integers(2, 8))
def test_ticks_lie_inside_and_are_even(lo: float, span: float, count: int) -> None:
    hi = lo + span
    found = ticks(lo, hi, count) if hi > lo else []
    assert len(found) <= 2 * count + 2
    slack = 1e-8 * (hi - lo) + 1e-11  # a billionth of a step, and ticks are rounded to twelve digits
    assert all(lo - slack <= t <= hi + slack for t in found)
    gaps = [b - a for a, b in itertools.pairwise(found)]
    assert all(g == pytest.approx(gaps[0], rel=1e-3, abs=1e-9) for g in gaps)


@given(lo=st.floats(1e-12, 1.0), factor=st.floats(1.01, 1e9), share=st.floats(0, 1))
def test_axes_keep_order_and_stay_inside(lo: float, factor: float, share: float) -> None:
    for log in (False, True):
        axis = Axis(lo=lo, hi=lo * factor, start=0, end=100, log=log)
        assert 0 <= axis(lo + share * (axis.hi - lo)) <= 100 + 1e-9
        assert axis(lo / 2) == 0
        assert axis(lo * factor * 2) == pytest.approx(100)
    marks = decades(lo, lo * factor)
    assert marks[0] <= lo * (1 + 1e-9)
    assert len(marks) <= 8
