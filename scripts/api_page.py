# SPDX-License-Identifier: Apache-2.0
"""Writes docs/api.md from docstrings and the README's table from the embedded circuits: ``make docs``.

With --check it only compares docs/api.md, without importing anything.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "heatfhe"
PAGE = ROOT / "docs" / "api.md"
ROOMS = (
    "approx", "halting", "models", "sites", "ranges", "circuit", "training", "lowering", "planning", "engine",
    "wire", "client", "server", "evaluation", "report",
)  # fmt: skip


def public(room: str) -> list[str]:
    """Names in a room's __all__."""
    tree = ast.parse((SOURCE / room / "__init__.py").read_text())
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            return [str(v) for v in ast.literal_eval(node.value)]
    return []


def top_level() -> dict[str, list[str]]:
    """Names that ``heatfhe`` itself gives out, by the room they come from."""
    found: dict[str, list[str]] = {}
    for node in ast.walk(ast.parse((SOURCE / "__init__.py").read_text())):
        home = (node.module or "") if isinstance(node, ast.ImportFrom) else ""
        if isinstance(node, ast.ImportFrom) and home.startswith("heatfhe.") and home != "heatfhe.doors":
            found.setdefault(home.split(".")[1], []).extend(alias.name for alias in node.names)
    return found


def renamed(room: str) -> dict[str, str]:
    """Public name to the name it has where it is written."""
    tree = ast.parse((SOURCE / room / "__init__.py").read_text())
    pairs = (a for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for a in node.names)
    return {a.asname or a.name: a.name for a in pairs}


def definitions(room: str) -> dict[str, list[tuple[str, ast.stmt]]]:
    """Every class, function and constant at the top of a room's files, by name."""
    found: dict[str, list[tuple[str, ast.stmt]]] = {}
    for path in sorted((SOURCE / room).rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            where = str(path.relative_to(ROOT))
            if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
                found.setdefault(node.name, []).append((where, node))
            elif isinstance(node, (ast.Assign, ast.AnnAssign)):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for target in targets:
                    if isinstance(target, ast.Name):
                        found.setdefault(target.id, []).append((where, node))
    return found


def signature(node: ast.FunctionDef) -> str:
    """Arguments and result as written."""
    result = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"({ast.unparse(node.args)}){result}"


def entry(name: str, where: str, node: ast.stmt) -> list[str]:
    """One public name: what it is, its docstring, its public methods."""
    if isinstance(node, ast.FunctionDef):
        doc = ast.get_docstring(node) or ""
        return [f"### `{name}{signature(node)}`", "", *quoted(doc), f"In `{where}`.", ""]
    if isinstance(node, ast.ClassDef):
        lines = [f"### class `{name}`", "", *quoted(ast.get_docstring(node) or ""), f"In `{where}`.", ""]
        for part in node.body:
            if isinstance(part, ast.FunctionDef) and not part.name.startswith("_"):
                first = (ast.get_docstring(part) or "").split("\n")[0]
                is_property = any(isinstance(d, ast.Name) and "property" in d.id for d in part.decorator_list)
                shown = f"`.{part.name}`" if is_property else f"`.{part.name}{signature(part)}`"
                lines.append(f"- {shown}: {first}")
        return [*lines, ""]
    return [f"### `{name}`", "", f"In `{where}`.", ""]


def quoted(doc: str) -> list[str]:
    """A docstring as it stands, so that its labels and examples keep their columns."""
    return ["```text", doc.replace("```", "'''"), "```", ""] if doc else []


def page() -> str:
    """The whole page."""
    lines = ["# API", "", "Made from docstrings by `make docs`; do not edit. Names not listed here are private.", ""]
    lines += ["- [heatfhe](#heatfhe)"]
    lines += [f"- [heatfhe.{room}](#heatfhe{room})" for room in ROOMS] + [""]
    lines += ["## heatfhe", "", *quoted(ast.get_docstring(ast.parse((SOURCE / "__init__.py").read_text())) or "")]
    kinds = (ast.ClassDef, ast.FunctionDef)
    for room, names in top_level().items():
        known = definitions(room)
        for name in names:
            lines += entry(name, *next(w for w in known[name] if isinstance(w[1], kinds)))
    for room in ROOMS:
        doc = ast.get_docstring(ast.parse((SOURCE / room / "__init__.py").read_text())) or ""
        lines += [f"## heatfhe.{room}", "", doc, ""]
        known, names = definitions(room), renamed(room)
        for name in public(room):
            written = known.get(names.get(name, name))
            if written is None:
                continue  # comes from another room, which documents it
            real = [w for w in written if isinstance(w[1], (ast.ClassDef, ast.FunctionDef))] or written
            lines += entry(name, *real[0])
    return "\n".join(lines).rstrip() + "\n"


def readme_rows() -> list[str]:
    """Iterations, levels and bootstraps of the embedded circuits, by prices that are not measured again."""
    from heatfhe.assets import default_circuit
    from heatfhe.circuit import Circuit
    from heatfhe.planning import cost_table, plan, preset, tally

    out = []
    for kind in ("calibrated", "heat"):
        circuit = Circuit.load(default_circuit(kind))
        made = plan(circuit, preset("insecure-native-12"), cost="cheddar-h200")
        found = tally(made, "generate", cost_table(made.cost)).values()
        levels, bootstraps = sum(t.levels for t in found), sum(t.bootstraps for t in found)
        out.append(f"| {kind} | {sum(circuit.calibration.iterations().values())} | {levels} | {bootstraps} |")
    return out


def main() -> int:
    """Write, or compare."""
    made = page()
    if "--check" in sys.argv:
        same = PAGE.exists() and PAGE.read_text() == made
        print("docs/api.md is up to date" if same else "docs/api.md is out of date; run make docs")
        return 0 if same else 1
    PAGE.write_text(made)
    print(f"wrote docs/api.md ({len(made) // 1024} KiB)")
    readme = ROOT / "README.md"
    head = "| circuit | iterations | levels | bootstraps |\n|---|---|---|---|\n"
    before, _, after = readme.read_text().partition(head)
    rest = after.split("\n\n", 1)[1]
    readme.write_text(before + head + "\n".join(readme_rows()) + "\n\n" + rest)
    print("wrote the README's table")
    return 0


if __name__ == "__main__":
    sys.exit(main())
