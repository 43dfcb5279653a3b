# SPDX-License-Identifier: Apache-2.0
"""Text to windows of tokens: files, JSON lines, Hugging Face datasets, or token arrays, packed to the context length.

Every batch is a pure function of (seed, position), so a resumed run sees what an uninterrupted one would have seen.
"""

from __future__ import annotations

import json
import lzma
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from heatfhe.errors import ConfigError, DataError, MissingExtraError
from heatfhe.models import encoder
from heatfhe.odd import spread

END = "<|endoftext|>"
Encode = Callable[[str], Sequence[int]]


def read_documents(source: str | Path) -> Iterator[str]:
    """Documents of a text file (split at <|endoftext|>, .xz allowed), a .jsonl file (field ``text``), or a dataset.

    A dataset is ``hf:NAME[:SPLIT]``: a local folder or a hub name, read through the ``datasets`` library.
    """
    if str(source).startswith("hf:"):
        yield from _dataset_documents(str(source)[3:])
        return
    path = Path(source)
    if not path.is_file():
        raise DataError(f"{path}: no such text file; give a .txt, .txt.xz or .jsonl file, or hf:NAME for a dataset")
    opener: Any = lzma.open if path.suffix == ".xz" else open
    try:
        with opener(path, "rt", encoding="utf-8") as f:
            if ".jsonl" in path.suffixes:
                for number, line in enumerate(f, 1):
                    if line.strip():
                        yield _json_text(path, number, line)
            else:
                for document in f.read().split(END):
                    if text := document.strip("\n"):
                        yield text
    except (UnicodeDecodeError, lzma.LZMAError, EOFError) as err:
        raise DataError(f"{path}: cannot be read as text ({err})") from err


def _json_text(path: Path, number: int, line: str) -> str:
    try:
        value = json.loads(line)
        if isinstance(value, dict) and isinstance(value.get("text"), str):
            return str(value["text"])
    except json.JSONDecodeError:
        pass
    raise DataError(f"{path}:{number}: expected a JSON object with a string field 'text'")


def _dataset_documents(name: str) -> Iterator[str]:
    try:
        from datasets import load_dataset, load_from_disk
    except ModuleNotFoundError as err:
        if err.name != "datasets":
            raise
        raise MissingExtraError("train", needed_by=f"the dataset {name}") from err
    name, _, split = name.partition(":")
    split = split or "train"
    saved = any((Path(name) / part).is_file() for part in ("dataset_info.json", "dataset_dict.json"))
    try:
        loaded: Any = load_from_disk(name) if saved else load_dataset(name, split=split)
    except (OSError, ValueError) as err:
        raise DataError(f"dataset {name}: cannot be loaded ({err}); give a folder, or a name within reach") from err
    if isinstance(loaded, dict):
        if split not in loaded:
            raise DataError(f"dataset {name}: has no split {split!r}, only {', '.join(loaded)}; give hf:{name}:SPLIT")
        loaded = loaded[split]
    for row in loaded:
        if not isinstance(row.get("text"), str):
            raise DataError(f"dataset {name}: rows have no string field 'text', only {', '.join(sorted(row))}")
        yield row["text"]


@dataclass(frozen=True, slots=True)
class Windows:
    """Windows of context + 1 tokens (inputs and their targets), each a row.

    ``odd`` marks windows that are there for the ranges they reach: their own next tokens are not worth learning, the
    parent's predictions on them are.
    """

    rows: NDArray[np.int64]
    odd: NDArray[np.bool_] | None = None

    def __post_init__(self) -> None:
        if self.rows.ndim != 2 or self.rows.shape[0] < 1 or self.rows.shape[1] < 3:
            raise DataError(f"windows need shape (count >= 1, context + 1 >= 3), got {self.rows.shape}")
        if self.odd is not None and (self.odd.dtype != np.bool_ or self.odd.shape != self.rows.shape[:1]):
            raise DataError(f"odd marks each of {len(self.rows)} windows, got {self.odd.dtype} of {self.odd.shape}")

    @property
    def context(self) -> int:
        """Tokens of a window that are inputs."""
        return int(self.rows.shape[1]) - 1

    def batch(self, seed: int, first: int, size: int) -> Tensor:
        """``size`` windows from the ``first`` on, in an endless run of reshuffled passes over the data."""
        return self.marked_batch(seed, first, size)[0]

    def marked_batch(self, seed: int, first: int, size: int) -> tuple[Tensor, Tensor]:
        """The same windows, and which of them are odd."""
        count = self.rows.shape[0]
        picked: list[int] = []
        while len(picked) < size:
            cycle, offset = divmod(first + len(picked), count)
            order = np.random.default_rng([seed, cycle]).permutation(count)
            picked += order[offset : offset + size - len(picked)].tolist()
        odd = np.zeros(size, dtype=np.bool_) if self.odd is None else self.odd[picked]
        return torch.from_numpy(self.rows[picked]), torch.from_numpy(odd)

    def split(self, held_out: int) -> tuple[Windows, Windows]:
        """The last ``held_out`` windows apart from the rest."""
        if not 0 < held_out < self.rows.shape[0]:
            raise DataError(f"cannot hold out {held_out} of {self.rows.shape[0]} windows; give more text")
        first, last = slice(None, -held_out), slice(-held_out, None)
        odd = self.odd
        return (
            replace(self, rows=self.rows[first], odd=None if odd is None else odd[first]),
            replace(self, rows=self.rows[last], odd=None if odd is None else odd[last]),
        )

    def mixed(self, rows: NDArray[np.int64]) -> Windows:
        """These windows with others spread evenly among them, which are marked as odd."""
        if rows.ndim != 2 or rows.shape[1] != self.rows.shape[1]:
            raise DataError(f"only windows of {self.rows.shape[1]} tokens can be mixed in, got {rows.shape}")
        if not len(rows):
            return self
        mixed, marks = spread(self.rows, rows)
        if self.odd is not None:
            marks[~marks] = self.odd
        return Windows(mixed, marks)


def pack(documents: Iterable[str], encode: Encode, context: int, end: int, *, name: str = "the text") -> Windows:
    """Encode documents, put the end token before each, and cut the stream into windows of context + 1 tokens."""
    stream = array("q")
    for document in documents:
        stream.append(end)
        stream.extend(encode(document))
    if len(stream) <= 1:
        raise DataError(f"{name} holds no text; give a file with at least {context + 1} tokens")
    return cut(np.frombuffer(stream, dtype=np.int64), context, name=name)


def cut(stream: NDArray[Any], context: int, *, name: str = "the tokens") -> Windows:
    """Cut a stream of tokens (an array or a memory map) into windows that overlap by one token."""
    if stream.ndim != 1 or not np.issubdtype(stream.dtype, np.integer):
        raise DataError(f"{name}: expected one row of integer token ids, found {stream.dtype} of shape {stream.shape}")
    count = (len(stream) - 1) // context
    if count < 1:
        raise DataError(
            f"{name} holds {len(stream)} tokens, a window needs {context + 1}; give more text or a shorter --context"
        )
    used = np.asarray(stream[: count * context + 1], dtype=np.int64)
    rows = np.lib.stride_tricks.sliding_window_view(used, context + 1)[::context]
    return Windows(np.ascontiguousarray(rows))


def load_windows(source: str | Path, encode: Encode, context: int, end: int) -> Windows:
    """Windows from any source: text, JSON lines, a dataset, or a .npy array of token ids (memory-mapped)."""
    if str(source).endswith(".npy"):
        try:
            stream = np.load(source, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError) as err:
            raise DataError(f"{source}: not an array of token ids ({err})") from err
        return cut(stream, context, name=str(source))
    return pack(read_documents(source), encode, context, end, name=str(source))


def windows_of(text: Any, tokenizer: Any, context: int) -> Windows:
    """Windows of whatever text there is: a file or ``hf:NAME`` as load_windows takes it, a list of strings, or a
    Hugging Face dataset with a field ``text``. The tokenizer is a folder, its files, or a Hugging Face tokenizer.

    >>> windows_of(["Once upon a time ...", "There was a cat ..."], "my-gpt2", 64)      # doctest: +SKIP
    """
    if not tokenizer:
        raise ConfigError("text needs a tokenizer: prepare the model by its folder, or give tokenizer=")
    encode, end = encoder(tokenizer)
    if isinstance(text, (str, Path)):
        return load_windows(text, encode, context, end)
    if isinstance(text, Mapping):
        raise DataError(f"a dataset of several splits ({', '.join(map(str, text))}); give one, as dataset['train']")
    return pack(_documents(text), encode, context, end)


def _documents(rows: Iterable[Any]) -> Iterator[str]:
    for number, row in enumerate(rows):
        document = row.get("text") if isinstance(row, Mapping) else row
        if not isinstance(document, str):
            found = type(row).__name__
            raise DataError(f"document {number}: expected a string, or a row with a field 'text', got {found}")
        yield document
