# SPDX-License-Identifier: Apache-2.0
"""What a run was made from: the command, the commit of the code, the seed, every number of the recipe, the text."""

from __future__ import annotations

import argparse
import hashlib
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import heatfhe

if TYPE_CHECKING:
    from heatfhe.training import Recipe, Windows

RUN_FILE, RUN_KIND, RUN_VERSION = "run.json", "heatfhe-run", 1


def commit() -> str | None:
    """The commit of the clone this package runs from, with '+' where files differ from it; None outside of a clone."""
    place = Path(heatfhe.__file__).resolve().parents[2]
    if not (place / ".git").exists():
        return None
    try:
        found = _git(place, "rev-parse", "HEAD")
        return found + ("+" if _git(place, "status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(place: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", str(place), *words], capture_output=True, text=True, check=True, timeout=30)
    return done.stdout.strip()


def run_facts(
    args: argparse.Namespace, recipe: Recipe, training: Windows, held_out: Windows, *, parent: str
) -> dict[str, Any]:
    """What ``run.json`` of a training run says."""
    texts: Sequence[str] = [args.text or "the embedded stories", *args.also]
    return {
        "command": getattr(args, "command_line", "heat train"),
        "commit": commit(),
        "heatfhe": heatfhe.__version__,
        "model": args.model,
        "parent": parent,
        "recipe": recipe.as_json(),
        "corpus": {
            "texts": list(texts),
            "windows": len(training.rows),
            "held_out": len(held_out.rows),
            "context": recipe.context,
            "sha256": hashlib.sha256(training.rows.tobytes()).hexdigest(),
        },
    }
