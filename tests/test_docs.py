# SPDX-License-Identifier: Apache-2.0
"""Documentation does not rot: links resolve, named files and commands exist, every number in README is derived here."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import io
import json
import re
import shlex
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from heatfhe.assets import default_circuit
from heatfhe.circuit import Circuit
from heatfhe.cli import GROUPS

ROOT = Path(__file__).parent.parent
NUMBERS = ROOT / "docs" / "numbers.md"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").glob("*.md")])
HOW_TO = sorted((ROOT / "docs" / "howto").glob("*.md"))
COMMANDS = {name for group in GROUPS.values() for name in group} | {"completion"}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_resolve(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
        if "://" not in target and not target.startswith("mailto:"):
            assert (page.parent / target).exists(), f"{page.name} links to {target}, which does not exist"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_named_sources_exist(page: Path) -> None:
    for name in re.findall(
        r"`((?:src|tests|bench|runs|examples|docs|scripts|proofs)/[\w./-]+\.(?:py|md|sh|v|json))`", page.read_text()
    ):
        assert (ROOT / name).exists(), f"{page.name} names {name}, which does not exist"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_commands_exist(page: Path) -> None:
    for command in re.findall(r"^\s*(?:\$ )?heat ([a-z-]+)", page.read_text(), flags=re.M):
        assert command in COMMANDS, f"{page.name} shows heat {command}"
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.M))
    for target in re.findall(r"`make ([a-z-]+)`", page.read_text()):
        assert target in targets, f"{page.name} names make {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_machine_slips_in(page: Path) -> None:
    assert not re.search(r"(^|[^\w.])/(work|root|farm|tmp)/\w", page.read_text()), page


def commands_of(page: Path, languages: tuple[str, ...]) -> list[str]:
    """Lines that begin with heat (after a prompt) in fenced blocks of these languages."""
    blocks = re.findall(r"```(\w+)\n(.*?)```", page.read_text(), flags=re.S)
    lines = [line for language, body in blocks if language in languages for line in body.splitlines()]
    found = [re.sub(r"^(?:\w+)?\$\s+", "", line) for line in lines]
    return [re.split("[#>]", line)[0].strip() for line in found if line.startswith("heat ")]


SHOWN = [
    (p.name, c)
    for p in (ROOT / "README.md", ROOT / "docs" / "index.md", ROOT / "docs" / "tutorial.md", *HOW_TO)
    for c in commands_of(p, ("sh", "console"))
]
SHOWN += [("README.md", command) for command in re.findall(r"`(heat [a-z][^`]+)`", (ROOT / "README.md").read_text())]


@pytest.mark.parametrize(("page", "command"), SHOWN, ids=lambda v: v[:60])
def test_shown_commands_are_understood(page: str, command: str) -> None:
    """Every heat command in README, tutorial and how-to pages parses with that command's own options."""
    _, name, *arguments = shlex.split(command)
    if name == "completion":
        return
    try:
        module = importlib.import_module(f"heatfhe.cli.{name.replace('-', '_')}")
    except ModuleNotFoundError as err:
        pytest.skip(f"heat {name} needs {err.name}")
    parser = argparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quiet", action="store_true")
    module.add_arguments(parser)
    parser.parse_args(arguments)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_python_blocks_run_and_print_what_follows(page: Path) -> None:
    """A python block followed by a text block must print it; blocks of one page share their names.

    Blocks that speak to a proxy are run against one in tests/client/test_proxy.py.
    """
    names: dict[str, object] = {}
    for code, wanted in re.findall(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", page.read_text(), flags=re.S):
        if "from openai import" in code or ("torch" in code and importlib.util.find_spec("torch") is None):
            continue
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            exec(compile(code, str(page.name), "exec"), names)
        if wanted:
            assert said.getvalue() == wanted, page


def results_text() -> str:
    """All pages of results, one after the other."""
    return "\n".join(page.read_text() for page in sorted((ROOT / "docs" / "results").glob("*.md")))


def test_every_page_of_results_is_in_the_summary_and_in_the_site() -> None:
    """One page per claim: a page that nothing leads to is lost."""
    folder = ROOT / "docs" / "results"
    summary, site = (folder / "index.md").read_text(), (ROOT / "mkdocs.yml").read_text()
    for page in sorted(folder.glob("*.md")):
        assert f"results/{page.name}" in site, f"mkdocs.yml does not name {page.name}"
        assert page.name == "index.md" or f"]({page.name})" in summary, f"the summary does not lead to {page.name}"
        assert len(page.read_text().splitlines()) <= 120, f"{page.name}: nobody reads a wall"
        first = page.read_text().split("\n\n")[1]
        assert page.name in ("index.md", "notebook.md") or first.startswith("**"), (
            f"{page.name}: the answer comes first"
        )
    claims = [line for line in summary.splitlines() if line[:1].isdigit()]
    assert len(claims) == 10


@cache
def script(name: str) -> Any:
    """A script of scripts/, as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["sets", "circuits"])
def test_tables_are_what_the_code_says(name: str) -> None:
    tables = script("doc_tables")
    assert tables.on_page(name) == tables.TABLES[name][1](), f"run python scripts/doc_tables.py {name}"


def test_table_of_recipes_is_what_the_code_says() -> None:
    pytest.importorskip("torch", reason="recipes are in training, which needs torch")
    tables = script("doc_tables")
    assert tables.on_page("recipes") == tables.recipes(), "run python scripts/doc_tables.py recipes"


def test_every_preset_is_explained() -> None:
    pytest.importorskip("torch", reason="heat train needs torch")
    from heatfhe.cli.comparison_jobs import SEARCHED, TRANSPLANT
    from heatfhe.training import ABLATIONS

    table = (ROOT / "docs" / "recipes.md").read_text().partition("## Presets")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    named = [name for row in rows for name in re.findall(r"`([a-z-]+)`", row)]
    assert sorted(named) == sorted([*ABLATIONS, TRANSPLANT, *SEARCHED])


def test_measured_figures_beside_the_tables_are_measured_elsewhere() -> None:
    """What recipes.md says of time and size, by hand, is in the results or on the card it names."""
    page = " ".join((ROOT / "docs" / "recipes.md").read_text().split())
    results = " ".join(results_text().split())
    assert "197 s on one H200" in page
    assert "all three phases of plain HEAT in **197 s**" in results
    assert "3.85 GiB of GPU memory" in page
    assert "| plain solver, peer a plain loop | 17.8 ms | 44.4 ms | 0.40 | 3.85 / 7.44 GiB |" in results
    assert "259 s on two cores of an AMD EPYC" in page
    assert re.search(r"^\[ 2\] train +259\.0 s", CARD.read_text(), flags=re.M)
    assert "3.56 GiB of keys to upload, 7.1 GiB of them on the GPU" in page
    assert "**3.56 GiB** travel, 7.1 GiB on the GPU" in results
    assert "0.89 s per token" in page
    assert "0.89 s at 128 bits" in results


CARD = ROOT / "docs" / "cards" / "demo_epyc-2-cores_202611.md"
PLANNED = r"is planned with \d+ bootstraps \(\d+ at the calibrated counts\) on \d+ levels"
"""The sentence about GPT-2 small, which tests/test_docs_commands.py plans anew."""
TRAINED = r"HEAT runs ([\d.]+ times fewer iterations than its parent calibrated at 1e-4), at a perplexity ([\d.]+ %)"
"""The sentence about HEAT's runs."""
SMALL = (
    r"all three phases take (\d+) s: (\d+) iterations calibrated, (\d+) with HEAT, held-out perplexity ([\d.]+) where "
    r"the control has ([\d.]+) and the parent ([\d.]+)\. The paper, on GPT-2 itself: (\d+) and (\d+), in (\d+) hours"
)
"""The sentence about HEAT on a GPT-2-small-shaped model."""


ENCRYPTED = (
    r"Under encryption at (\d+) bits that model generates a token in ([\d.]+) s on one H200.*?argmax over (\d+) words "
    r"included, each token fed back without decryption, (\d+) of (\d+) tokens"
)
"""The sentence about that model under encryption."""
ENCRYPTED_CARD = ROOT / "docs" / "cards" / "encrypted-gpt2_h200_202611.json"


SHORT = (
    r"under encryption at (\d+) bits a GPT-2-small-shaped model generates a token in ([\d.]+) s on one H200\*\*, and "
    r"HEAT training brings its iterations from (\d+) to (\d+) in (\d+) s"
)
"""README's own sentence: both results in short."""


def test_readme_says_what_numbers_say() -> None:
    short = re.search(SHORT, " ".join((ROOT / "README.md").read_text().split()))
    numbers = " ".join(NUMBERS.read_text().split())
    small, encrypted = re.search(SMALL, numbers), re.search(ENCRYPTED, numbers)
    assert short is not None
    assert small is not None
    assert encrypted is not None
    bits, seconds, calibrated, learned, training = short.groups()
    assert (bits, seconds) == encrypted.groups()[:2]
    assert (training, calibrated, learned) == small.groups()[:3]


def results_rows() -> list[str]:
    """Rows of the table beside OpenFHE, each of which must be a row of docs/results/."""
    table = re.search(r"\n\| operation \| ours .*?\n\n", NUMBERS.read_text(), flags=re.S)
    assert table is not None
    return table.group().strip().splitlines()[2:]


def prose(text: str) -> str:
    """A page without commands, blocks, targets of links, and what other tests check (rows, a plan)."""
    text = re.sub(r"`[^`\n]+`", "", re.sub(r"```.*?```", "", text, flags=re.S))
    text = re.sub(r"\n\| system \| what is run .*", "", text, flags=re.S)
    text = re.sub(r"\n\| operation \| ours .*?\n\n", "\n\n", text, flags=re.S)
    text = re.sub(r"<!-- table.*?<!-- end of \w+ -->", "", text, flags=re.S)
    text = re.sub(rf"{PLANNED}|{TRAINED}|{SMALL}|{ENCRYPTED}|{SHORT}", "", " ".join(text.split()))
    return re.sub(r"\]\([^)]*\)", "]", text)


def test_measured_rows_are_rows_of_results() -> None:
    results = results_text().splitlines()
    assert len(results_rows()) >= 4
    for row in results_rows():
        assert row in results, f"docs/results/ has no row {row}"


def test_what_numbers_say_of_training_is_in_results() -> None:
    results = " ".join(results_text().split())
    words = re.search(TRAINED, " ".join(NUMBERS.read_text().split()))
    assert words is not None
    assert words.group(1) in results
    assert re.search(rf"\| \*\*HEAT\*\* \|.*?\| \+{re.escape(words.group(2))}", results)


def test_what_numbers_say_of_gpt2_small_is_in_results() -> None:
    section = (ROOT / "docs" / "results" / "heat-gpt2.md").read_text()
    words = re.search(SMALL, " ".join(NUMBERS.read_text().split()))
    assert words is not None
    seconds, calibrated, learned, own, control, parent, papers, papers_learned, hours = words.groups()
    assert f"all three phases of plain HEAT in **{seconds} s**" in " ".join(section.split())
    assert f"the paper: {hours} hours on an A100" in " ".join(section.split())
    ends = {row.split(" | ")[0]: row for row in section.splitlines() if row.startswith("| ")}
    for name, figures in (
        ("| parent, exact (as its card says)", f"| {parent} |"),
        ("| calibrated 1e-4, plain", f"| {calibrated} |"),
        ("| distilled control, exact", f"| {control} |"),
        ("| **HEAT, plain**", f"| **{learned}** | **{own}** |"),
        ("| *the paper: calibrated*", f"| *{papers}* |"),
        ("| *the paper: HEAT*", f"| *{papers_learned}* |"),
    ):
        assert figures in ends[name]


def test_what_numbers_say_of_encrypted_tokens_is_on_their_card() -> None:
    words = re.search(ENCRYPTED, " ".join(NUMBERS.read_text().split()))
    assert words is not None
    bits, seconds, vocabulary, right, all_of_them = words.groups()
    run = json.loads(ENCRYPTED_CARD.read_text())["run"]
    (plan,) = (row for row in run if row["what"] == "plan")
    (median,) = (row for row in run if row["what"] == "seconds per token")
    talks = [row for row in run if row["what"] == "conversation"]
    assert bits == str(plan["security"])
    assert seconds == f"{median['median']:.2f}"
    assert vocabulary == "50257"
    assert (int(right), int(all_of_them)) == (sum(t["same"] for t in talks), sum(t["of"] for t in talks))


@pytest.mark.parametrize("page", [ROOT / "README.md", NUMBERS], ids=lambda p: p.name)
def test_every_number_is_derived(page: Path) -> None:
    """A number in these pages' words is a fact of the package or a planned figure; others are checked beside this."""
    circuit = Circuit.load(default_circuit())
    facts = set(re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text()))
    facts |= {f"{sum(w.size for w in circuit.weights.values()) / 1e6:.2f}"}
    facts |= {str(circuit.shape.layers), str(circuit.shape.width)}
    facts |= set(re.findall(r"^done in ([\d.]+) minutes", CARD.read_text(), flags=re.M))
    for number in re.findall(r"(?<![\w.`-])\d+(?:[.,]\d+)*(?![\w-])", prose(page.read_text())):
        assert number in facts, f"{page.name} says {number}, which nothing here derives"


def test_quoted_rows_name_source_and_hardware() -> None:
    rows = re.search(r"\n\| system \| what is run .*", NUMBERS.read_text(), flags=re.S)
    assert rows is not None
    for row in rows.group().strip().splitlines()[2:]:
        system, *_, hardware = [cell.strip() for cell in row.strip("|").split("|")]
        assert "](https://" in system or system == "HEAT paper", row
        assert hardware, row


@pytest.mark.parametrize("name", ["README.md", "docs/demo.md"])
def test_the_demo_that_is_shown_is_on_its_card(name: str) -> None:
    """Output of make demo, line by line, is of a run that was kept, as are the minutes it took."""
    shown = re.search(r"```text\n(.*?)```", (ROOT / name).read_text(), flags=re.S)
    assert shown is not None
    assert len(shown.group(1).splitlines()) >= 6
    kept = CARD.read_text().splitlines()
    for line in shown.group(1).splitlines():
        assert line in kept, f"{name} shows a line that is not on {CARD.name}: {line}"
    minutes = re.findall(r"^done in ([\d.]+) minutes", CARD.read_text(), flags=re.M)
    for said in re.findall(r"([\d.]+) minutes", prose((ROOT / name).read_text())):
        assert said in minutes
