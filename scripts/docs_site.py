# SPDX-License-Identifier: Apache-2.0
"""What MkDocs asks while it builds the site (``make docs``): pages made on the spot, and links that leave docs/.

Made here: the API from docstrings, the commands from their ``--help``, contributing and changelog from the repository's
own pages, and each notebook as a page to read. Only ``on_files`` needs MkDocs, so that tests read the rest without it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import os
import posixpath
import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
COPIED = {"contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md"}
"""Pages of the site that are pages of the repository."""
LINK = re.compile(r"```.*?```|`[^`\n]+`|\[(?P<words>(?:`[^`]*`|[^\]`])+)\]\((?P<target>[^)\s]+)\)", flags=re.S)
"""Code, which is left as it is, or a link."""


def slug(text: str, separator: str = "-") -> str:
    """The anchor of a heading, as code hosts make it: one page reads the same here and there."""
    kept = re.sub(r"[^\w\- ]", "", re.sub(r"<[^>]+>", "", text).strip().lower())
    return kept.replace(" ", separator)


@cache
def made_names() -> frozenset[str]:
    """Pages that stand in no folder: what ``made_pages`` will make."""
    return frozenset([*_api().pages(), "commands.md", *COPIED, *(f"notebooks/{p.stem}.md" for p in notebooks())])


def made_pages() -> dict[str, str]:
    """Every page made on the spot, by its path in the site."""
    made: dict[str, str] = {**_api().pages(), "commands.md": commands_page()}
    made |= {name: (ROOT / source).read_text() for name, source in COPIED.items()}
    return made | {f"notebooks/{p.stem}.md": notebook_page(p) for p in notebooks()}


def notebooks() -> list[Path]:
    """The notebooks of the documentation."""
    return sorted((DOCS / "notebooks").glob("*.ipynb"))


def notebook_page(path: Path) -> str:
    """A notebook as a page: its words and its code; outputs are not kept in the repository."""
    parts = []
    for cell in json.loads(path.read_text())["cells"]:
        text = "".join(cell["source"]).strip()
        parts.append(text if cell["cell_type"] == "markdown" else f"```py\n{text}\n```")
    title, *rest = parts
    note = f'This page is a notebook: <a href="{path.name}" download>download it</a> and run it.'
    return "\n\n".join([title, note, *rest]) + "\n"


def commands_page() -> str:
    """Every command's own help, in the order of ``heat --help``."""
    if str(ROOT / "src") not in sys.path:
        sys.path.insert(0, str(ROOT / "src"))
    from heatfhe.cli import GROUPS, main

    def said(*arguments: str) -> str:
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
            main(list(arguments))
        return f"```text\n{out.getvalue().rstrip()}\n```"

    before, os.environ["COLUMNS"] = os.environ.get("COLUMNS"), "110"
    try:
        parts = ["# Commands", "What `heat COMMAND --help` prints, for every command.", "## heat", said("--help")]
        for role, group in GROUPS.items():
            parts += [f"## For {'the ' if role != 'everyone' else ''}{role}"]
            for name in group:
                parts += [f"### heat {name}", said(name, "--help")]
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before
    return "\n\n".join(parts) + "\n"


def outside(text: str, page: str) -> str:
    """Links that leave docs/: to a page of the repository that the site has, or else only the words of the link.

    A page that is a copy lives one folder higher in the repository, and its links into docs/ are shortened.
    """
    copied = {source: name for name, source in COPIED.items()}
    home = "" if page in COPIED else posixpath.join("docs", posixpath.dirname(page))

    def mended(match: re.Match[str]) -> str:
        words, target = match.group("words"), match.group("target")
        if target is None or re.match(r"[a-z]+:|#", target):
            return match.group()
        path, _, anchor = target.partition("#")
        real = posixpath.normpath(posixpath.join(home, path))
        if not (ROOT / real).exists() and real.removeprefix("docs/") not in made_names():
            return match.group()  # dead: MkDocs says so and fails
        inside = copied.get(real) or (real.removeprefix("docs/") if real.startswith("docs/") else None)
        if inside is not None and inside.endswith(".ipynb"):
            inside = inside.removesuffix(".ipynb") + ".md"
        if inside is None or not (inside in made_names() or (DOCS / inside).is_file()):
            return words
        back = posixpath.relpath(inside, posixpath.dirname(page) or ".")
        return f"[{words}]({back}{'#' + anchor if anchor else ''})"

    return LINK.sub(mended, text)


def _api() -> Any:
    spec = importlib.util.spec_from_file_location("api_page", ROOT / "scripts" / "api_page.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def on_config(config: Any) -> Any:
    """MkDocs: anchors as code hosts make them."""
    config.mdx_configs.setdefault("toc", {})["slugify"] = slug
    return config


def on_files(files: Any, config: Any) -> Any:
    """MkDocs: the pages made on the spot."""
    from mkdocs.structure.files import File

    for name, text in made_pages().items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """MkDocs: one page's links."""
    return outside(markdown, page.file.src_uri)
