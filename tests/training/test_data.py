# SPDX-License-Identifier: Apache-2.0
"""Data: every kind of source gives the same windows; batches depend on (seed, position) alone; bad ones are named."""

from __future__ import annotations

import json
import lzma
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heatfhe.errors import DataError
from heatfhe.training import Windows, cut, load_windows, pack, read_documents

STORIES = ["the cat sat", "on the mat", "and slept\nall day"]


def encode(text: str) -> list[int]:
    return [1 + ord(c) % 60 for c in text]


@pytest.fixture
def sources(tmp_path: Path) -> dict[str, str]:
    joined = "\n<|endoftext|>\n".join(STORIES)
    lines = "".join(json.dumps({"text": s, "id": i}) + "\n\n" for i, s in enumerate(STORIES))
    (tmp_path / "a.txt").write_text(joined)
    (tmp_path / "b.txt.xz").write_bytes(lzma.compress(joined.encode()))
    (tmp_path / "c.jsonl").write_text(lines)
    (tmp_path / "d.jsonl.xz").write_bytes(lzma.compress(lines.encode()))
    stream = [t for s in STORIES for t in (0, *encode(s))]
    np.save(tmp_path / "e.npy", np.array(stream, dtype=np.uint16))
    return {p.name: str(p) for p in tmp_path.iterdir()}


def test_every_source_gives_the_same_windows(sources: dict[str, str]) -> None:
    wanted = pack(STORIES, encode, 8, 0).rows
    for source in sources.values():
        assert np.array_equal(load_windows(source, encode, 8, 0).rows, wanted), source
    assert wanted.shape == (5, 9)
    assert np.array_equal(wanted[1:, 0], wanted[:-1, -1])  # the last target of a window is the first input of the next


def test_datasets_saved_or_as_folders(sources: dict[str, str], tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="the datasets library is not installed")
    rows = datasets.Dataset.from_dict({"text": STORIES})
    rows.save_to_disk(tmp_path / "saved")
    datasets.DatasetDict({"train": rows, "test": rows.select([1])}).save_to_disk(tmp_path / "split")
    assert list(read_documents(f"hf:{tmp_path / 'saved'}")) == STORIES
    assert list(read_documents(f"hf:{tmp_path / 'split'}")) == STORIES
    assert list(read_documents(f"hf:{tmp_path / 'split'}:test")) == STORIES[1:2]
    with pytest.raises(DataError, match="no split 'dev', only train, test"):
        list(read_documents(f"hf:{tmp_path / 'split'}:dev"))
    datasets.Dataset.from_dict({"words": STORIES}).save_to_disk(tmp_path / "other")
    with pytest.raises(DataError, match="no string field 'text', only words"):
        list(read_documents(f"hf:{tmp_path / 'other'}"))


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("gone.txt", None, "no such text file"),
        ("gone.npy", None, "not an array of token ids"),
        ("empty.txt", b"", "holds no text"),
        ("blank.txt", b"\n<|endoftext|>\n", "holds no text"),
        ("short.txt", b"cat", "holds 4 tokens, a window needs 9"),
        ("latin.txt", b"caf\xe9 " * 20, "cannot be read as text"),
        ("cut.txt.xz", lzma.compress(b"word " * 500)[:40], "cannot be read as text"),
        ("noise.txt.xz", b"not compressed", "cannot be read as text"),
        ("wrong.jsonl", b'{"text": "a"}\n{"body": "b"}\n', "wrong.jsonl:2: expected a JSON object"),
        ("number.jsonl", b'{"text": 3}\n', "number.jsonl:1"),
        ("broken.jsonl", b"{", "broken.jsonl:1"),
        ("junk.npy", b"junk", "not an array of token ids"),
    ],
)
def test_bad_sources_are_named(tmp_path: Path, name: str, content: bytes | None, words: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=words) as caught:
        load_windows(tmp_path / name, encode, 8, 0)
    assert name in str(caught.value)


@pytest.mark.parametrize("array", [np.zeros((4, 9), np.int64), np.zeros(50), np.zeros(5, np.int64)])
def test_arrays_that_are_no_stream_of_tokens(tmp_path: Path, array: np.ndarray) -> None:
    np.save(tmp_path / "x.npy", array)
    with pytest.raises(DataError):
        load_windows(tmp_path / "x.npy", encode, 8, 0)


def test_holding_out() -> None:
    windows = cut(np.arange(81), 8)
    first, last = windows.split(3)
    assert (len(first.rows), len(last.rows)) == (7, 3)
    assert np.array_equal(np.concatenate([first.rows, last.rows]), windows.rows)
    for held_out in (0, 10):
        with pytest.raises(DataError, match="cannot hold out"):
            windows.split(held_out)
    with pytest.raises(DataError, match="windows need shape"):
        Windows(np.zeros((0, 9), np.int64))


@settings(max_examples=60, deadline=None)
@given(count=st.integers(1, 17), seed=st.integers(0, 2**31), sizes=st.lists(st.integers(1, 9), min_size=1, max_size=12))
def test_batches_are_one_endless_stream_however_it_is_cut(count: int, seed: int, sizes: list[int]) -> None:
    windows = cut(np.arange(count * 4 + 1), 4)
    parts, first = [], 0
    for size in sizes:
        parts.append(windows.batch(seed, first, size))
        first += size
    assert torch.equal(torch.cat(parts), windows.batch(seed, 0, first))


@settings(max_examples=60, deadline=None)
@given(count=st.integers(1, 17), seed=st.integers(0, 2**31), cycles=st.integers(1, 4))
def test_every_cycle_holds_every_window_once(count: int, seed: int, cycles: int) -> None:
    windows = cut(np.arange(count * 4 + 1), 4)
    for cycle in range(cycles):
        seen = Counter(windows.batch(seed, cycle * count, count)[:, 0].tolist())
        assert seen == Counter(range(0, count * 4, 4))


def test_seeds_and_cycles_differ() -> None:
    windows = cut(np.arange(4 * 64 + 1), 4)
    assert not torch.equal(windows.batch(0, 0, 64), windows.batch(1, 0, 64))
    assert not torch.equal(windows.batch(0, 0, 64), windows.batch(0, 64, 64))


def test_windows_mixed_in_keep_their_mark_through_batches_and_splits() -> None:
    windows = cut(np.arange(4 * 30 + 1), 4)
    other = np.full((6, 5), 999)
    mixed = windows.mixed(other).mixed(other[:2] + 1)
    assert mixed.odd is not None
    assert (len(mixed.rows), int(mixed.odd.sum())) == (38, 8)
    assert np.array_equal(mixed.odd, mixed.rows[:, 0] >= 999)
    assert np.array_equal(mixed.rows[~mixed.odd], windows.rows)
    rows, odd = mixed.marked_batch(3, 5, 50)
    assert torch.equal(rows, mixed.batch(3, 5, 50))
    assert torch.equal(odd, rows[:, 0] >= 999)
    assert not windows.marked_batch(3, 5, 50)[1].any()
    first, last = mixed.split(10)
    for part in (first, last):
        assert np.array_equal(part.odd, part.rows[:, 0] >= 999)
    assert windows.mixed(other[:0]) is windows
    with pytest.raises(DataError, match="only windows of 5 tokens can be mixed in"):
        windows.mixed(other[:, :4])
    with pytest.raises(DataError, match="odd marks each of 30 windows"):
        Windows(windows.rows, np.zeros(29, np.bool_))
