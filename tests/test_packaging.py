# SPDX-License-Identifier: Apache-2.0
"""What a package index and a code host read: extras, citation, templates."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import heatfhe

yaml = pytest.importorskip("yaml", reason="PyYAML comes with the development environment")
ROOT = Path(__file__).parent.parent
PROJECT = (ROOT / "pyproject.toml").read_text()


def extra(name: str) -> set[str]:
    """Packages of an extra, by name."""
    found = re.search(rf"^{name} = \[(.*?)\]$", PROJECT, flags=re.M)
    assert found is not None, name
    return {re.split(r"[><=\[]", part.strip('" '))[0] for part in found.group(1).split(", ")}


def test_extras_are_what_the_command_line_names() -> None:
    from heatfhe.cli import EXTRAS

    for package, name in EXTRAS.items():
        assert package in extra(name), f"heatfhe[{name}] does not bring {package}"
    assert re.search(r'^all = \["heatfhe\[train,native,serve,report\]"\]$', PROJECT, flags=re.M)
    assert extra("client") == extra("native")  # and what the package needs anyway: no torch, no server


def test_the_citation_is_of_this_version() -> None:
    body = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert body["version"] == heatfhe.__version__
    assert {"cff-version", "title", "message", "authors", "license"} <= set(body)


def test_templates_name_targets_and_commands_that_exist() -> None:
    from heatfhe.cli import GROUPS

    pages = [*(ROOT / ".github").rglob("*.md")]
    assert len(pages) == 3
    known = {name for group in GROUPS.values() for name in group}
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.M))
    for page in pages:
        assert set(re.findall(r"`heat ([a-z-]+)", page.read_text())) <= known
        assert set(re.findall(r"`make ([a-z-]+)`", page.read_text())) <= targets
