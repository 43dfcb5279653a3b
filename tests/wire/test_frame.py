# SPDX-License-Identifier: Apache-2.0
"""Framing: round trips, every mutation refused, limits before content, nothing read past what was declared."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heatfhe.errors import WireError
from heatfhe.files import canonical_json
from heatfhe.wire import Limits, Message, MessageFile, MessageScanner, TooLargeError, parse
from heatfhe.wire.frame import MAGIC, PREFIX

PLAN = "ab" * 32
SMALL = Limits(header_bytes=4096, blocks=8, block_bytes=1000, total_bytes=5000)
names = st.from_regex(r"[a-z][a-z0-9]{0,6}(/[0-9]{1,4})?", fullmatch=True)
messages = st.builds(
    lambda blocks, number: Message(kind="job", plan=PLAN, body={"number": number}, blocks=blocks),
    st.dictionaries(names, st.binary(max_size=200), max_size=5),
    st.integers(-(10**12), 10**12),
)


def with_header(header: object, tail: bytes = b"") -> bytes:
    """A message with any header and a right digest at its end."""
    import hashlib

    text = header if isinstance(header, bytes) else canonical_json(header)
    data = PREFIX.pack(MAGIC, 1, 0, len(text)) + text + tail
    return data + hashlib.sha256(data).digest()


@given(message=messages)
def test_a_message_comes_back_as_it_was_packed(message: Message) -> None:
    found = parse(message.pack(), SMALL, kinds=("job",))
    assert (found.kind, found.plan, dict(found.body), dict(found.blocks)) == ("job", PLAN, message.body, message.blocks)


@given(message=messages, data=st.data())
def test_any_split_into_chunks_reads_the_same(message: Message, data: st.DataObject) -> None:
    packed = message.pack()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(packed)), max_size=6)))
    scanner = MessageScanner(SMALL, kinds=("job",), length=len(packed))
    for a, b in zip([0, *cuts], [*cuts, len(packed)]):
        scanner.feed(packed[a:b])
    header = scanner.finish()
    assert [name for name, _, _ in header.blocks] == list(message.blocks)
    assert scanner.digest == packed[-32:].hex()


@settings(max_examples=300)
@given(message=messages, data=st.data())
def test_no_altered_byte_and_no_cut_passes(message: Message, data: st.DataObject) -> None:
    packed = bytearray(message.pack())
    if data.draw(st.booleans()):
        packed[data.draw(st.integers(0, len(packed) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    elif data.draw(st.booleans()):
        del packed[data.draw(st.integers(0, len(packed) - 1)) :]
    else:
        packed += data.draw(st.binary(min_size=1, max_size=40))
    with pytest.raises(WireError):
        parse(bytes(packed), SMALL, kinds=("job",))


def test_sizes_are_refused_from_the_header_alone() -> None:
    block = {"name": "input/0000", "sha256": "00" * 32, "size": 1001}
    big = {"kind": "job", "plan": PLAN, "body": {}, "blocks": [block]}
    text = canonical_json(big)
    scanner = MessageScanner(SMALL, kinds=("job",))
    with pytest.raises(TooLargeError, match="1001 bytes exceeds the limit of 1000"):
        scanner.feed(PREFIX.pack(MAGIC, 1, 0, len(text)) + text)  # not one byte of the block was sent
    many = {**big, "blocks": [{**block, "name": f"b{i}", "size": 900} for i in range(6)]}
    with pytest.raises(TooLargeError, match="exceeds the limit of 5000"):
        parse(with_header(many), SMALL, kinds=("job",))
    with pytest.raises(TooLargeError, match="header of"):
        MessageScanner(SMALL, kinds=("job",)).feed(PREFIX.pack(MAGIC, 1, 0, 1 << 31))
    with pytest.raises(TooLargeError, match="exceeds the limit"):
        MessageScanner(SMALL, kinds=("job",), length=1 << 40)


@pytest.mark.parametrize(
    ("header", "why"),
    [
        ({"kind": "other", "plan": PLAN, "body": {}, "blocks": []}, "'kind' must be one of job"),
        ({"kind": "job", "plan": PLAN[:-1], "body": {}, "blocks": []}, "64 lower-case"),
        ({"kind": "job", "plan": PLAN, "body": [], "blocks": []}, "'body' must be an object"),
        ({"kind": "job", "plan": PLAN, "blocks": []}, "'body' is missing"),
        ({"kind": "job", "plan": PLAN, "body": {}, "blocks": [], "more": 1}, "unknown field 'more'"),
        ({"kind": "job", "plan": PLAN, "body": {}, "blocks": [1]}, "expected an object"),
        (b'{"kind":"job","kind":"job"}', "not valid JSON"),
        (b'{"kind":NaN}', "not valid JSON"),
        (b'{"a":' + b"[" * 5000, "JSON"),
        (b'{"a":' + b"9" * 300 + b"}", "not valid JSON"),
        (b"\xff\xfe", "not valid JSON"),
        (b"[]", "not an object"),
    ],
)
def test_odd_headers_are_refused_with_a_reason(header: object, why: str) -> None:
    limits = Limits(header_bytes=8192, blocks=8, block_bytes=1000, total_bytes=20_000)
    with pytest.raises(WireError, match=why):
        parse(with_header(header), limits, kinds=("job",))


@pytest.mark.parametrize("name", ["../up", "/etc/x", "a//b", "a/../b", "", "a\x00b", "a/.", "x" * 200, "é", "a b"])
def test_names_that_could_be_paths_are_refused(name: str) -> None:
    block = {"name": name, "sha256": "00" * 32, "size": 0}
    header = {"kind": "job", "plan": PLAN, "body": {}, "blocks": [block]}
    with pytest.raises(WireError, match="'name' must be"):
        parse(with_header(header), SMALL, kinds=("job",))
    with pytest.raises(WireError, match="name"):
        Message(kind="job", plan=PLAN, body={}, blocks={name: b""}).pack()


def test_two_blocks_of_one_name_and_wrong_block_digests_are_refused() -> None:
    block = {"name": "a", "sha256": "00" * 32, "size": 0}
    header = {"kind": "job", "plan": PLAN, "body": {}, "blocks": [block, block]}
    with pytest.raises(WireError, match="share a name"):
        parse(with_header(header), SMALL, kinds=("job",))
    with pytest.raises(WireError, match="block's digest"):
        parse(with_header({**header, "blocks": [block]}), SMALL, kinds=("job",))


def test_versions_and_flags_of_the_future_are_refused() -> None:
    good = Message(kind="job", plan=PLAN, body={}).pack()
    with pytest.raises(WireError, match="version 2"):
        parse(good[:8] + b"\x02\x00" + good[10:], SMALL, kinds=("job",))
    with pytest.raises(WireError, match="flags"):
        parse(good[:10] + b"\x01\x00" + good[12:], SMALL, kinds=("job",))


def test_a_message_on_disk_is_read_block_by_block(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    blocks = {f"input/{i:04d}": rng.bytes(100 + i) for i in range(4)}
    path = tmp_path / "message"
    path.write_bytes(Message(kind="job", plan=PLAN, body={"a": 1}, blocks=blocks).pack())
    found = MessageFile(path, SMALL, kinds=("job",))
    assert found.header.body == {"a": 1}
    assert {name: found.block(name) for name, _, _ in found.header.blocks} == blocks
    with pytest.raises(WireError, match="no block"):
        found.block("input/9999")
    spoiled = bytearray(path.read_bytes())
    spoiled[-100] ^= 1
    path.write_bytes(bytes(spoiled))
    with pytest.raises(WireError, match="digest"):
        found.block("input/0003")
    path.write_bytes(bytes(spoiled[:-5]))
    with pytest.raises(WireError, match="cut short"):
        MessageFile(path, SMALL, kinds=("job",))


def test_the_documented_example_has_the_documented_bytes() -> None:
    packed = Message(kind="job", plan=PLAN, body={"steps": 2}, blocks={"input/0000": b"abc"}).pack()
    assert packed[:12] == b"HEATFHE1" + bytes([1, 0, 0, 0])
    length = int.from_bytes(packed[12:16], "little")
    header = json.loads(packed[16 : 16 + length])
    assert header["blocks"] == [
        {"name": "input/0000", "sha256": "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad", "size": 3}
    ]
    assert packed[16 + length : -32] == b"abc"
