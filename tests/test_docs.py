# SPDX-License-Identifier: Apache-2.0
"""Documentation does not rot: links resolve, named files and commands exist, no machine's paths slip in."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import io
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from heatfhe.cli import GROUPS

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").glob("*.md")])
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
    return [line.split("#")[0].strip() for line in found if line.startswith("heat ")]


SHOWN = [
    (p.name, c) for p in (ROOT / "README.md", ROOT / "docs" / "tutorial.md") for c in commands_of(p, ("sh", "console"))
]


@pytest.mark.parametrize(("page", "command"), SHOWN, ids=lambda v: v[:60])
def test_shown_commands_are_understood(page: str, command: str) -> None:
    """Every heat command in README and tutorial parses with that command's own options."""
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


def test_every_page_is_reached_from_the_index() -> None:
    index = (ROOT / "docs" / "index.md").read_text()
    for page in sorted((ROOT / "docs").rglob("*.md")):
        if page.name != "index.md":
            assert str(page.relative_to(ROOT / "docs")) in index, f"docs/index.md does not link {page.name}"


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="how Python prints signatures differs between versions")
def test_api_page_is_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "api_page.py"), "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


def test_readme_table_is_what_planning_says() -> None:
    """The README's table of the embedded circuits, recomputed by the script that writes it."""
    spec = importlib.util.spec_from_file_location("api_page", ROOT / "scripts" / "api_page.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    for row in script.readme_rows():
        assert row in (ROOT / "README.md").read_text(), f"README should say {row}; run make docs"


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_tutorial_commands_run(tmp_path: Path) -> None:
    """Every sh block of the tutorial, in order, in an empty folder; the training run is cut to a tenth."""
    pytest.importorskip("torch", reason="the tutorial trains")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "2"}
    for command in commands_of(ROOT / "docs" / "tutorial.md", ("sh",)):
        arguments = shlex.split(command.replace("--share 0.5", "--share 0.05"))[1:]
        done = subprocess.run(
            [sys.executable, "-m", "heatfhe.cli", *arguments],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=environment,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stderr[-2000:]}"
    assert (tmp_path / "out" / "tutorial" / "report.html").stat().st_size > 50_000
