# SPDX-License-Identifier: Apache-2.0
"""docs/glossary.md is followed: in rooms that have been brought to it, a word no longer has its other meanings."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.test_rooms import FILES, FLOORS, SOURCE, room

GLOSSARY = (Path(__file__).parent.parent / "docs" / "glossary.md").read_text()
TORCH = ("halting", "ranges", "sites", "lowering")
NUMPY = ("approx", "stages", "models", "circuit", "planning", "ckks", "wire", "engine")
RETIRED: dict[str, tuple[str, ...]] = {
    "step": ("approx", "stages", "models", "circuit", *TORCH),  # updates, iterations
    "law": tuple(FLOORS),  # distributions
    "slack": tuple(room for room in FLOORS if room not in ("sites", "training")),  # of a guard, and nothing else
    "window": (
        "approx",
        "stages",
        "models",
        "halting",
        "sites",
        "planning",
        "ckks",
        "wire",
        "server",
    ),  # reach, interval
    "preset": ("approx", "stages", "models", "circuit", "wire", *TORCH, "training", "evaluation", "report", "server"),
}
"""Words by the rooms in which nothing they mean occurs."""
KEPT = {
    ("ckks/params.py", "window"),
    ("ckks/presets.py", "window"),
    ("models/llama.py", "window"),
    ("training/recipes/__init__.py", "preset"),
}
"""Names in files: the keys of parameter sets and of chains, a field of a configuration, an option of a command."""


@pytest.mark.parametrize("word", RETIRED)
def test_a_word_is_gone_where_it_meant_something_else(word: str) -> None:
    pattern, found = re.compile(rf"(?i)(?<![a-z]){word}s?(?![a-z])"), []
    for path in FILES:
        where = str(path.relative_to(SOURCE))
        if room(path) in RETIRED[word] and "ckks/kernels/cuda" not in where and (where, word) not in KEPT:
            lines = enumerate(path.read_text().splitlines(), 1)
            found += [f"{where}:{number}" for number, line in lines if pattern.search(line)]
    assert not found, f"docs/glossary.md has another word for what {word!r} is here: {found}"


def test_exceptions_are_still_needed() -> None:
    for where, word in KEPT:
        assert re.search(rf"\b{word}s?\b", (SOURCE / where).read_text()), (where, word)


def test_the_glossary_defines_what_is_retired_and_names_what_exists() -> None:
    words = re.findall(r"^\| \*\*([\w -]+)\*\*", GLOSSARY, flags=re.M)
    assert len(words) == len(set(words)) >= 30
    assert set(RETIRED) <= set(words)
    for place, name in re.findall(r"`(\w+)\.([A-Z]\w+)`", GLOSSARY):
        if place in FLOORS:
            text = "\n".join(path.read_text() for path in FILES if room(path) == place)
            assert re.search(rf"^(?:class {name}\b|{name} = )", text, flags=re.M), f"{place}.{name}"
