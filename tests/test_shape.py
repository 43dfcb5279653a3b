# SPDX-License-Identifier: Apache-2.0
"""The shape of functions: none so long or with so many positional parameters that it must be read twice."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "heatfhe"
MOST_LINES, MOST_POSITIONAL = 100, 8
# Kernels take flat arrays and numbers, one by one: their compilers know no records.
KERNELS = ("ckks/kernels/", "halting/fused/", "sites/fused/", "training/fused.py")


def functions(text: str) -> Iterator[tuple[str, int, int]]:
    """Name, lines and positional parameters (``self`` and ``cls`` apart) of every function, nested ones too."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            names = [a.arg for a in node.args.posonlyargs + node.args.args]
            own = names[:1] in (["self"], ["cls"])
            yield node.name, (node.end_lineno or 0) - node.lineno + 1, len(names) - own


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("def f(a, b=1, /, c=2, *d, e, **g): ...", [("f", 1, 3)]),
        ("async def f():\n    def g(a):\n        ...\n    return g", [("f", 4, 0), ("g", 2, 1)]),
        ("class A:\n    @property\n    def f(self): ...\n    @classmethod\n    def g(cls, a, *, b): ...",
         [("f", 1, 0), ("g", 1, 1)]),
    ],
)  # fmt: skip
def test_what_is_counted(text: str, expected: list[tuple[str, int, int]]) -> None:
    assert list(functions(text)) == expected


def found(column: int, most: int, *, but: tuple[str, ...] = ()) -> list[str]:
    paths = [(p, p.relative_to(SOURCE).as_posix()) for p in sorted(SOURCE.rglob("*.py"))]
    assert len(paths) > 200
    return [
        f"{where}: {row[0]} has {row[column]}"
        for path, where in paths
        if not where.startswith(but)
        for row in functions(path.read_text())
        if row[column] > most
    ]


def test_no_function_is_long() -> None:
    assert not (long := found(1, MOST_LINES)), f"over {MOST_LINES} lines; give its parts names: {long}"


def test_no_function_outside_kernels_takes_many_positional_parameters() -> None:
    many = found(2, MOST_POSITIONAL, but=KERNELS)
    assert not many, f"over {MOST_POSITIONAL} positional parameters; name them or make a record: {many}"
    assert found(2, MOST_POSITIONAL), "kernels no longer need their exception: remove it"
