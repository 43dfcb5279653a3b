# SPDX-License-Identifier: Apache-2.0
"""The documentation as a site: every page has its place, links and anchors are alive, every public name is on a page.

None of it needs MkDocs but the slow test, which builds the site in an environment of its own and walks through it.
"""

from __future__ import annotations

import importlib
import os
import posixpath
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tests.test_docs import ROOT, script

yaml = pytest.importorskip("yaml", reason="PyYAML comes with the development environment")
DOCS = ROOT / "docs"
SITE = script("docs_site")
CONFIG = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
ON_DISK = {str(p.relative_to(DOCS)) for p in DOCS.rglob("*.md")}


def places(nav: Any) -> list[str]:
    """Pages of a navigation, in order."""
    if isinstance(nav, str):
        return [nav]
    return [page for part in (nav.values() if isinstance(nav, dict) else nav) for page in places(part)]


def texts() -> dict[str, str]:
    """Every page of the site as Markdown, but for the commands, whose modules need their extras."""
    made = dict(SITE._api().pages())
    made |= {name: (ROOT / source).read_text() for name, source in SITE.COPIED.items()}
    made |= {f"notebooks/{p.stem}.md": SITE.notebook_page(p) for p in SITE.notebooks()}
    made |= {name: (DOCS / name).read_text() for name in ON_DISK}
    return {name: SITE.outside(text, name) for name, text in made.items()}


TEXTS = texts()


def anchors(text: str) -> set[str]:
    """Anchors of a page's headings."""
    bare = re.sub(r"```.*?```", "", text, flags=re.S)
    return {SITE.slug(words.replace("`", "")) for words in re.findall(r"^#+ (.+)$", bare, flags=re.M)}


def test_every_page_has_one_place_in_the_navigation() -> None:
    listed = places(CONFIG["nav"])
    assert len(listed) == len(set(listed))
    assert set(listed) == ON_DISK | SITE.made_names()
    assert not ON_DISK & SITE.made_names()  # what is made is not committed
    top = [next(iter(part)) for part in CONFIG["nav"]]
    assert top == ["Start", "Tutorial", "How to", "Concepts", "Reference", "Security", "Results", "Architecture"]


@pytest.mark.parametrize("page", sorted(TEXTS))
def test_links_and_anchors_are_alive(page: str) -> None:
    for match in SITE.LINK.finditer(TEXTS[page]):
        target = match.group("target")
        if target is None or re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        real = posixpath.normpath(posixpath.join(posixpath.dirname(page), path)) if path else page
        assert real in TEXTS or real == "commands.md" or (DOCS / real).is_file(), f"{page} links to {target}"
        if anchor:
            assert anchor in anchors(TEXTS[real]), f"{page} links to {target}; has: {sorted(anchors(TEXTS[real]))}"


@pytest.mark.parametrize("page", sorted(ON_DISK))
def test_lists_stand_apart(page: str) -> None:
    """The site's Markdown begins a list only after an empty line; a code host is more forgiving."""
    bare = re.sub(r"```.*?```", "", (DOCS / page).read_text(), flags=re.S)
    glued = re.findall(r"^(?![ \t]*(?:[-*]|\d+\.) )[^\n|#>\s][^\n]*\n(?:- |\d+\. )[^\n]*", bare, flags=re.M)
    inside = [
        found for found in glued if not re.search(rf"^(?:- |\d+\. )[^\n]*\n(?:[^\n]+\n)*{re.escape(found)}", bare, re.M)
    ]
    assert not inside, f"{page}: an empty line is missing before a list: {inside[:1]}"


def test_a_link_that_leaves_the_pages_becomes_words_and_a_dead_one_stays() -> None:
    kept = "`[c](x.py)` [d](gone.md) [e](https://example.org) [f](math/softmax.md#x)"
    text = f"[a](../src/heatfhe/errors.py) [b](../CONTRIBUTING.md) {kept}"
    assert SITE.outside(text, "theory.md") == f"a [b](contributing.md) {kept}"
    assert SITE.outside("[a](docs/reading.md)", "contributing.md") == "[a](reading.md)"
    assert SITE.outside("[a](notebooks/your_own_model.ipynb)", "index.md") == "[a](notebooks/your_own_model.md)"
    assert SITE.outside("[a](../glossary.md)", "math/softmax.md") == "[a](../glossary.md)"


def test_every_public_name_is_documented() -> None:
    """Each name in a room's __all__ is on a page of the API, and each function and class there has its docstring."""
    api = script("api_page")
    pages = api.pages()
    seen = 0
    rooms = [p.parent.name for p in (ROOT / "src" / "heatfhe").glob("*/__init__.py")]
    assert set(api.ROOMS) == {r for r in rooms if api.public(r)} - {"assets", "cli"}
    for room in api.ROOMS:
        known = api.definitions(room)
        for name in api.public(room):
            if known.get(api.renamed(room).get(name, name)) is None:  # another room's own
                assert any(f"`{name}`" in page for page in pages.values()), f"heatfhe.{room}.{name}"
                continue
            found = re.search(rf"^### (class )?`{name}`\n\n(.*?)^In `", pages[f"api/{room}.md"], flags=re.M | re.S)
            assert found is not None, f"heatfhe.{room}.{name} is on no page"
            if found.group(1) or "```py" in found.group(2):
                assert ".doc}" in found.group(2), f"heatfhe.{room}.{name} has no docstring"
            seen += 1
    assert seen > 200
    assert not re.search(r"(^|[^\w.])/(work|root|farm|tmp)/\w", "".join(pages.values()))


def test_commands_page_has_every_command() -> None:
    for package in ("fastapi", "uvicorn"):
        pytest.importorskip(package, reason="heat serve --help needs the serve extra")
    page = SITE.commands_page()
    for name, words in (
        (n, w) for group in importlib.import_module("heatfhe.cli").GROUPS.values() for n, w in group.items()
    ):
        assert f"### heat {name}\n\n```text\nusage: heat {name}" in page, words


class Walker(HTMLParser):
    """Ids, links and what a page loads."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.ids |= {found[k] for k in ("id", "name") if k in found}
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        elif tag in ("script", "img", "iframe", "source") and "src" in found:
            self.loads.append(found["src"])
        elif tag == "link" and found.get("rel") != "canonical":
            self.loads.append(found.get("href", ""))


def build(folder: Path) -> subprocess.CompletedProcess[str]:
    setup = subprocess.run([str(ROOT / "scripts" / "setup"), "docs"], capture_output=True, text=True, check=False)
    if setup.returncode:
        pytest.skip(f"no environment for the documentation: {setup.stderr[-300:]}")
    python = Path(setup.stdout.split()[-1]) / "bin" / "python"
    command = [str(python), "-m", "mkdocs", "build", "--strict"]
    environment = {**os.environ, "PYTHONPATH": "src", "NO_MKDOCS_2_WARNING": "1", "http_proxy": "http://127.0.0.1:9"}
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment, check=False)


@pytest.mark.slow
def test_the_site_builds_and_every_page_is_reached(tmp_path: Path) -> None:
    """From its first page every other is reached, every link and anchor lives, nothing is fetched from elsewhere."""
    for name in ("docs", "scripts", "src"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in (
        "mkdocs.yml",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        "README.md",
        "examples",
        "tests",
        "proofs",
        "runs",
        "LICENSE",
    ):
        (tmp_path / name).symlink_to(ROOT / name)
    done = build(tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    site = tmp_path / "build" / "site"
    seen: dict[Path, Walker] = {}
    waiting = [site / "index.html"]
    while waiting:
        page = waiting.pop()
        if page in seen:
            continue
        seen[page] = walker = Walker()
        walker.feed(page.read_text())
        for loaded in walker.loads:
            assert not re.match(r"(https?:)?//", loaded), f"{page.name} loads {loaded}"
        for target in (t.partition("#")[0] for t in walker.links if not re.match(r"[a-z]+:", t)):
            found = (page.parent / target).resolve() if target else page
            assert found.exists(), f"{page.name} links to {target}"
            if found.suffix == ".html":
                waiting.append(found)
    assert {p.relative_to(site).as_posix() for p in seen} == {
        p.relative_to(site).as_posix() for p in site.rglob("*.html") if p.name != "404.html"
    }
    for page, walker in seen.items():
        for target in (t for t in walker.links if "#" in t and not re.match(r"[a-z]+:", t)):
            path, _, anchor = target.partition("#")
            found = (page.parent / path).resolve() if path else page
            assert not anchor or anchor in seen[found].ids, f"{page.name} links to {target}"
    (tmp_path / "docs" / "concepts.md").write_text("# Concepts\n\n[gone](nowhere.md) and [lost](security.md#nowhere)\n")
    broken = build(tmp_path)
    assert broken.returncode != 0
    assert "nowhere.md" in broken.stderr
    assert "#nowhere" in broken.stderr
