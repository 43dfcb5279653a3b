# SPDX-License-Identifier: Apache-2.0
"""The reference of every public name, as pages of the site, from docstrings. Nothing is imported or written."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "heatfhe"
ROOMS = (
    "approx", "stages", "halting", "models", "sites", "ranges", "circuit", "ckks", "training", "lowering", "planning",
    "engine", "wire", "client", "server", "evaluation", "search", "report",
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
        body = ast.parse(path.read_text()).body
        for node, after in zip(body, [*body[1:], None]):
            where = str(path.relative_to(ROOT))
            if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
                found.setdefault(node.name, []).append((where, node))
            elif isinstance(node, (ast.Assign, ast.AnnAssign)):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for target in targets:
                    if isinstance(target, ast.Name):
                        node.type_comment = _words(after)  # what stands below a constant is its docstring
                        found.setdefault(target.id, []).append((where, node))
    return found


def _words(node: ast.stmt | None) -> str:
    value = node.value if isinstance(node, ast.Expr) else None
    return str(value.value) if isinstance(value, ast.Constant) and isinstance(value.value, str) else ""


def signature(node: ast.FunctionDef) -> str:
    """Arguments and result as written."""
    result = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"({ast.unparse(node.args)}){result}"


def entry(name: str, where: str, node: ast.stmt) -> list[str]:
    """One public name: what it is, its docstring, its public methods."""
    if isinstance(node, ast.FunctionDef):
        doc = ast.get_docstring(node) or ""
        shown = ["```py", f"{name}{signature(node)}", "```", ""]
        return [f"### `{name}`", "", *shown, *quoted(doc), f"In `{where}`.", ""]
    if isinstance(node, ast.ClassDef):
        lines = [f"### class `{name}`", "", *quoted(ast.get_docstring(node) or ""), f"In `{where}`.", ""]
        for part in node.body:
            if isinstance(part, ast.FunctionDef) and not part.name.startswith("_"):
                first = (ast.get_docstring(part) or "").split("\n")[0]
                is_property = any(isinstance(d, ast.Name) and "property" in d.id for d in part.decorator_list)
                shown = f"`.{part.name}`" if is_property else f"`.{part.name}{signature(part)}`"
                lines.append(f"- {shown}: {first}")
        return [*lines, ""]
    return [f"### `{name}`", "", *quoted(getattr(node, "type_comment", None) or ""), f"In `{where}`.", ""]


def quoted(doc: str) -> list[str]:
    """A docstring as it stands, so that its labels and examples keep their columns."""
    return ["```{.text .doc}", doc.replace("```", "'''"), "```", ""] if doc else []


def pages() -> dict[str, str]:
    """Every page of the reference, by its path in the site: one for ``heatfhe`` itself, one for each room."""
    made = {"api/index.md": _own_page()}
    return made | {f"api/{room}.md": _room_page(room) for room in ROOMS}


def _own_page() -> str:
    lines = ["# API", "", "Made from docstrings. Names that are not listed here are private.", ""]
    lines += ["## heatfhe", "", *quoted(ast.get_docstring(ast.parse((SOURCE / "__init__.py").read_text())) or "")]
    kinds = (ast.ClassDef, ast.FunctionDef)
    for room, names in top_level().items():
        known = definitions(room)
        for name in names:
            lines += entry(name, *next(w for w in known[name] if isinstance(w[1], kinds)))
    lines += ["## Rooms", "", *(f"- [heatfhe.{room}]({room}.md)" for room in ROOMS)]
    return "\n".join(lines).rstrip() + "\n"


def _room_page(room: str) -> str:
    doc = ast.get_docstring(ast.parse((SOURCE / room / "__init__.py").read_text())) or ""
    lines = [f"# heatfhe.{room}", "", doc, ""]
    known, names = definitions(room), renamed(room)
    for name in public(room):
        written = known.get(names.get(name, name))
        if written is None:
            continue  # comes from another room, which documents it
        real = [w for w in written if isinstance(w[1], (ast.ClassDef, ast.FunctionDef))] or written
        lines += entry(name, *real[0])
    return "\n".join(lines).rstrip() + "\n"
