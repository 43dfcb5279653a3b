# SPDX-License-Identifier: Apache-2.0
"""The embedded default model: where its parent checkpoint, its circuits and its sampled text lie."""

from __future__ import annotations

import lzma
from pathlib import Path

from heatfhe.errors import FileFormatError

__all__ = ["default_circuit", "default_parent", "sampled_stories"]

END_OF_TEXT = "<|endoftext|>"
_HERE = Path(__file__).parent / "default"


def default_parent() -> Path:
    """Folder of the parent: a plain Hugging Face GPT-2 checkpoint in float16, with its tokenizer."""
    return _existing(_HERE / "parent")


def default_circuit(kind: str = "heat") -> Path:
    """Folder of an exported circuit of the default model: ``heat`` (trained) or ``calibrated`` (the parent's own)."""
    return _existing(_HERE / kind)


def sampled_stories() -> list[str]:
    """About a megabyte of stories sampled from the default model itself."""
    path = _existing(_HERE / "sampled.txt.xz")
    text = lzma.decompress(path.read_bytes()).decode()
    return [story for story in text.strip("\n").split(f"\n{END_OF_TEXT}\n") if story]


def _existing(path: Path) -> Path:
    if not path.exists():
        raise FileFormatError(f"{path.name}: not in this installation; make it with runs/default_model.sh")
    return path
