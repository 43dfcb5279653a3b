# SPDX-License-Identifier: Apache-2.0
"""Every theorem of proofs/ has a numeric twin, so that proof and program cannot drift apart."""

from __future__ import annotations

import ast
import re
from pathlib import Path

HERE = Path(__file__).parent
PROOFS = HERE.parents[1] / "proofs"
THEORY = HERE.parents[1] / "docs" / "theory.md"
SOURCE = HERE.parents[1] / "src" / "heatfhe"


def theorems() -> set[str]:
    """Every `Theorem` of proofs/, as File.name."""
    return {
        f"{source.stem}.{name}"
        for source in PROOFS.glob("*.v")
        for name in re.findall(r"^\s*Theorem (\w+)", source.read_text(), flags=re.MULTILINE)
    }


def twins() -> dict[str, str]:
    """Theorem to test, read from the `@twin(...)` decorators without importing the tests (one of them needs torch)."""
    found: dict[str, str] = {}
    for path in sorted(HERE.glob("test_twins_*.py")):
        for node in ast.parse(path.read_text()).body:
            if not isinstance(node, ast.FunctionDef):
                continue
            for call in node.decorator_list:
                if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "twin":
                    assert node.name.startswith("test_"), node.name
                    for argument in call.args:
                        found[ast.literal_eval(argument)] = f"{path.name}::{node.name}"
    return found


def test_every_theorem_has_a_twin_and_every_twin_a_theorem() -> None:
    assert theorems()
    assert sorted(twins()) == sorted(theorems())


def test_the_theory_page_names_every_theorem() -> None:
    page = THEORY.read_text()
    assert sorted(name for name in theorems() if f"`{name}`" not in page) == []
    named = set(re.findall(r"`((?:Sums|Iterators|Bits|Network|Halting|Softmax)\.\w+)`", page))
    assert sorted(name for name in named - theorems() if not name.endswith(".v")) == []


def test_the_theory_page_names_functions_that_exist() -> None:
    """The last column of its tables: `function`, `module.function`, `Class.member` or `parameter` of the code."""
    files = [path for room in ("approx", "halting") for path in (SOURCE / room).glob("*.py")]
    code = "\n".join(path.read_text() for path in (*files, HERE / "bits.py", HERE.parent / "approx" / "worst_case.py"))
    rows = [line for line in THEORY.read_text().splitlines() if line.startswith("| ") and line.count("`")]
    named = {name for row in rows for name in re.findall(r"`([\w.]+)`", row.rstrip("| ").rsplit(" | ", 1)[1])}
    assert len(named) > 30
    last = {name: name.split(".")[-1] for name in named}
    missing = [
        name for name, part in last.items()
        if not re.search(rf"\b(?:def|class) {part}\b|^\s*{part}\s*[:=]", code, flags=re.MULTILINE)
    ]
    assert missing == []
