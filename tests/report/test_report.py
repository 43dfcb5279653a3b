# SPDX-License-Identifier: Apache-2.0
"""The report: every kind of run is read, every figure has words and data, nothing is fetched, words are escaped."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heatfhe.circuit import Circuit
from heatfhe.cli import main
from heatfhe.errors import ConfigError, FileFormatError
from heatfhe.planning import cost_table
from heatfhe.planning.params import preset
from heatfhe.report import Material, gather, render
from heatfhe.report.charts import depth_map, iterations, latency
from heatfhe.report.gather import telling_sites, training_facts
from heatfhe.report.svg import Axis, decades, ticks
from tests.report.runs import save_circuits, save_everything, save_training

PARAMS = "insecure-native-11"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return save_everything(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def found(runs: list[Path]) -> Material:
    return gather(runs, params=preset(PARAMS), costs=cost_table("unit"))


@pytest.fixture(scope="module")
def page(found: Material) -> str:
    return render(found, title="a <title>", versions=[("heatfhe", "0")], commands=["heat report x"])


class Reader(HTMLParser):
    """Checks nesting, and collects ids and what they are referred to by."""

    VOID = ("meta", "link", "line", "rect", "circle", "polyline", "br")

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
    full, fewer = found.circuits
    assert sum(fewer.iterations().values()) < sum(full.iterations().values())
    assert fewer.levels < full.levels
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
    for key in ("iterations", "training", "levels", "latency", "fidelity", "drift", "server", "parameters", "versions"):
        assert f'<section id="{key}"' in page
    assert "NO SECURITY" in page
    assert "Insecure toy parameters" in page


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
