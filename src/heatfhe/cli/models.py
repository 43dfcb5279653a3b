# SPDX-License-Identifier: Apache-2.0
"""heat models: circuits, plans and keys on this machine, with their sizes and security."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heatfhe.circuit import Circuit
from heatfhe.cli.console import Console
from heatfhe.client import client_folder, read_key_card
from heatfhe.errors import ConfigError, FileFormatError
from heatfhe.planning import Plan

HELP = """List circuits, plans and keys below folders, show one, or remove one.

A circuit is a directory of heat export or heat train, a plan a file of heat plan, keys a folder that heat keygen made
for one configuration of one server: without them nothing that this server still keeps for you can be decrypted."""
EXAMPLES = """  heat models
  heat models out served
  heat models out/mine/circuit
  heat models --remove mine.plan
"""
_DEEPEST = 5


@dataclass(frozen=True)
class Found:
    """One thing on disk, and what is known of it."""

    kind: str
    path: Path
    facts: dict[str, Any]

    @property
    def size(self) -> int:
        """Bytes of all its files."""
        files = [self.path] if self.path.is_file() else [p for p in self.path.rglob("*") if p.is_file()]
        return sum(p.stat().st_size for p in files)

    def as_json(self) -> dict[str, Any]:
        """Plain JSON form."""
        return {"kind": self.kind, "path": str(self.path), "bytes": self.size, **self.facts}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line."""
    parser.add_argument("places", nargs="*", type=Path, help="folders, or one thing (default: this folder)")
    parser.add_argument("--keys", type=Path, metavar="DIR", help="where keys are kept (default: ~/.heatfhe)")
    parser.add_argument("--remove", type=Path, metavar="PATH", help="remove this circuit, plan or folder of keys")


def run(args: argparse.Namespace, console: Console) -> int:
    """List, show or remove."""
    if args.remove is not None:
        found = _recognised(args.remove)
        if found is None:
            raise ConfigError(
                f"{args.remove}: neither a circuit, nor a plan, nor keys, and nothing was removed; give the path of one"
            )
        size = found.size
        shutil.rmtree(found.path) if found.path.is_dir() else found.path.unlink()
        console.print(f"removed {found.kind} {found.path}, {size / 1e6:.1f} MB")
        console.json({"removed": str(found.path), "kind": found.kind, "bytes": size})
        return 0
    places = args.places or [Path()]
    for place in places:
        if not place.exists():
            raise ConfigError(f"{place}: no such file or folder; give folders to look into")
    keys = client_folder(args.keys) / "keys"
    rows = [one for place in [*places, *([keys] if keys.is_dir() else [])] for one in _below(place, _DEEPEST)]
    console.table(
        ("kind", "name", "security", "MB", "path"),
        [(r.kind, r.facts.get("name", "-"), r.facts.get("security", "-"), r.size / 1e6, str(r.path)) for r in rows],
    )
    if len(args.places) == 1 and (one := _recognised(args.places[0])) is not None:
        console.print()
        console.table(("fact", "value"), [(k, str(v)) for k, v in one.facts.items()])
    console.json([r.as_json() for r in rows])
    return 0


def _below(place: Path, depth: int) -> Iterator[Found]:
    """Everything in a folder, at most so deep; what is inside a circuit or a folder of keys belongs to it."""
    if (one := _recognised(place)) is not None:
        yield one
    elif place.is_dir() and depth:
        for path in sorted(place.iterdir()):
            if not path.name.startswith(".") and not path.is_symlink():
                yield from _below(path, depth - 1)


def _recognised(path: Path) -> Found | None:
    """What a path is, if it is one of ours and whole."""
    try:
        if (path / "circuit.json").is_file():
            return Found("circuit", path, Circuit.load(path).facts())
        if (path / "manifest.json").is_file() and (path / "secret").is_dir():
            return Found("keys", path, read_key_card(path))
        if path.is_file() and path.suffix in (".plan", ".json") and b'"heatfhe-plan"' in path.read_bytes()[-4096:]:
            made = Plan.load(path)
            return Found("plan", path, {"name": made.name, **made.facts()})
    except FileFormatError:
        return None
    return None
