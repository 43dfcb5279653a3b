# SPDX-License-Identifier: Apache-2.0
"""Documentation does not rot: links resolve, named files and commands exist, no machine's paths slip in."""

from __future__ import annotations

import re
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
    for name in re.findall(r"`((?:src|tests|bench|runs|examples|docs|scripts|proofs)/[\w./-]+\.(?:py|md|sh|v|json))`", page.read_text()):
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
