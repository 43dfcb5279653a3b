# SPDX-License-Identifier: Apache-2.0
"""Scripts in runs/ and bench/ find the package of their own checkout: a reader types the command that a page shows."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SCRIPTS = sorted([*(ROOT / "runs").glob("*.py"), *(ROOT / "bench").glob("*.py")])


def names(node: ast.stmt) -> set[str]:
    """What a statement imports, by the first word of it."""
    if isinstance(node, ast.Import):
        return {alias.name.split(".")[0] for alias in node.names}
    return {(node.module or "").split(".")[0]} if isinstance(node, ast.ImportFrom) else set()


def looks_there(node: ast.stmt) -> bool:
    """Whether a statement puts the checkout's own source among the places of modules."""
    text = ast.unparse(node)
    return text.startswith("sys.path.insert(0") and "'src'" in text


def found_too_late(path: Path) -> bool:
    """Whether a script asks for the package before anything has said where it is. One that does so in processes of
    its own tells them by their environment."""
    said = "_peer" in path.read_text() or path.name in TOLD
    for node in ast.parse(path.read_text()).body:
        said = said or looks_there(node)
        for name in names(node):
            other = path.parent / f"{name}.py"
            said = said or (other in SCRIPTS and any(map(looks_there, ast.parse(other.read_text()).body)))
        inner = {n for part in ast.walk(node) if isinstance(part, ast.stmt) for n in names(part)}
        if "heatfhe" in inner and not said and path.name not in LIBRARIES:
            return True
    return False


LIBRARIES = ("pieces.py", "gpt2_stages.py")  # imported by scripts that have said it
TOLD = ("misbehaving_client.py",)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_script_says_where_the_package_is(path: Path) -> None:
    assert not found_too_late(path), f"{path.name}: sys.path.insert(0, <checkout>/src) before heatfhe is imported"


def test_the_check_sees_a_script_that_does_not(tmp_path: Path) -> None:
    wrong, right = tmp_path / "wrong.py", tmp_path / "right.py"
    wrong.write_text("import sys\nfrom heatfhe.circuit import Circuit\nsys.path.insert(0, 'src')\n")
    right.write_text("import sys\nsys.path.insert(0, 'src')\nfrom heatfhe.circuit import Circuit\n")
    assert found_too_late(wrong)
    assert not found_too_late(right)
