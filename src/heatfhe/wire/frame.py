# SPDX-License-Identifier: Apache-2.0
"""One binary message: magic, version, JSON header, raw blocks, SHA-256. Sizes are checked before anything is kept.

    "HEATFHE1" (8) | version u16 | flags u16 = 0 | header length u32 | header | blocks ... | SHA-256 of all before (32)

Integers are little-endian. The header is canonical JSON: kind, plan, body, blocks (name, size, sha256 each, in order).
There is no compression, so a message is never larger than what was sent.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from heatfhe.errors import WireError
from heatfhe.files import canonical_json
from heatfhe.wire.strict import Fields, is_name, strict_json

MAGIC, VERSION = b"HEATFHE1", 1
PREFIX = struct.Struct("<8sHHI")
TRAILER = 32


class TooLargeError(WireError):
    """A message, its header or one of its blocks exceeds a limit."""


MEDIA_TYPE = "application/vnd.heatfhe.message; version=1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The largest message a reader accepts. Checked on the header, before a block is read."""

    header_bytes: int = 1 << 20
    blocks: int = 4096
    block_bytes: int = 1 << 26
    total_bytes: int = 1 << 30

    def __post_init__(self) -> None:
        if min(self.header_bytes, self.blocks, self.block_bytes, self.total_bytes) < 1:
            raise WireError("message limits must be positive")


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """Named blocks of raw bytes under a small JSON header that says what they are and which plan they belong to."""

    kind: str
    plan: str
    body: Mapping[str, Any]
    blocks: Mapping[str, bytes] = field(default_factory=dict)

    def pack(self) -> bytes:
        """Wire form."""
        listing = [
            {"name": name, "sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}
            for name, data in self.blocks.items()
        ]
        if not all(is_name(name) for name in self.blocks):
            raise WireError("a block name is not a plain name; see docs/formats.md")
        header = canonical_json({"kind": self.kind, "plan": self.plan, "body": dict(self.body), "blocks": listing})
        parts = [PREFIX.pack(MAGIC, VERSION, 0, len(header)), header, *self.blocks.values()]
        sha = hashlib.sha256()
        for part in parts:
            sha.update(part)
        return b"".join([*parts, sha.digest()])


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What a message says before its blocks."""

    kind: str
    plan: str
    body: dict[str, Any]
    blocks: tuple[tuple[str, int, str], ...]
    offset: int

    @property
    def total(self) -> int:
        """Exact length of the whole message."""
        return self.offset + sum(size for _, size, _ in self.blocks) + TRAILER


class MessageScanner:
    """Checks one message as its bytes arrive and keeps only its header: the bytes may go straight to a file.

    Refuses as soon as a limit or a check fails; ``finish`` says that all of it was there and every digest agrees.
    """

    def __init__(self, limits: Limits, *, kinds: tuple[str, ...], length: int | None = None) -> None:
        if length is not None and length > limits.total_bytes:
            raise TooLargeError(f"a message of {length} bytes exceeds the limit of {limits.total_bytes}; send less")
        self._limits, self._kinds, self._length = limits, kinds, length
        self._head = bytearray()
        self._whole, self._block = hashlib.sha256(), hashlib.sha256()
        self._at = 0  # bytes taken after the header
        self._number, self._left = 0, 0  # current block and what it still lacks
        self._trailer = bytearray()
        self.header: Header | None = None

    @property
    def digest(self) -> str:
        """SHA-256 that ends the message, in hex: identifies it."""
        return bytes(self._trailer).hex()

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes."""
        if self.header is None:
            self._head += chunk
            self.header = _header(self._head, self._limits, self._kinds)
            if self.header is None:
                return
            if self._length is not None and self._length != self.header.total:
                raise WireError(
                    f"a message declares {self.header.total} bytes and carries {self._length}; see docs/formats.md"
                )
            chunk = bytes(self._head[self.header.offset :])
            del self._head[self.header.offset :]
            self._whole.update(self._head)
            self._left = self.header.blocks[0][1] if self.header.blocks else 0
            self._end_blocks()
        view = memoryview(chunk)
        while view and self._number < len(self.header.blocks):
            part = view[: self._left]
            self._whole.update(part)
            self._block.update(part)
            self._left -= len(part)
            view = view[len(part) :]
            self._end_blocks()
        if len(self._trailer) + len(view) > TRAILER:
            raise WireError("a message is longer than its header says; see docs/formats.md")
        self._trailer += view

    def finish(self) -> Header:
        """The header, once every byte has arrived and every digest agrees."""
        if self.header is None or len(self._trailer) != TRAILER:
            raise WireError("a message was cut short; send it again")
        if self._whole.digest() != bytes(self._trailer):
            raise WireError("a message's digest does not match its bytes; it was altered on the way, send it again")
        return self.header

    def _end_blocks(self) -> None:
        assert self.header is not None
        while self._number < len(self.header.blocks) and self._left == 0:
            if self._block.hexdigest() != self.header.blocks[self._number][2]:
                raise WireError("a block's digest does not match its bytes; see docs/formats.md")
            self._number, self._block = self._number + 1, hashlib.sha256()
            if self._number < len(self.header.blocks):
                self._left = self.header.blocks[self._number][1]


def parse(data: bytes, limits: Limits, *, kinds: tuple[str, ...]) -> Message:
    """A whole message at once."""
    scanner = MessageScanner(limits, kinds=kinds, length=len(data))
    scanner.feed(data)
    header = scanner.finish()
    blocks, at = {}, header.offset
    for name, size, _ in header.blocks:
        blocks[name], at = data[at : at + size], at + size
    return Message(kind=header.kind, plan=header.plan, body=header.body, blocks=blocks)


class MessageFile:
    """A message on disk: its header is read at once, its blocks one at a time, each checked against its digest."""

    def __init__(self, path: Path, limits: Limits, *, kinds: tuple[str, ...]) -> None:
        self._path = path
        with path.open("rb") as f:
            data = bytearray(f.read(PREFIX.size))
            length = PREFIX.unpack(data)[3] if len(data) == PREFIX.size else 0
            data += f.read(min(length, limits.header_bytes))
        header = _header(data, limits, kinds)
        if header is None or path.stat().st_size != header.total:
            raise WireError(f"{path.name}: the stored message was cut short")
        self.header = header

    def block(self, name: str) -> bytes:
        """Bytes of one block."""
        at = self.header.offset
        for found, size, digest in self.header.blocks:
            if found == name:
                with self._path.open("rb") as f:
                    f.seek(at)
                    data = f.read(size)
                if hashlib.sha256(data).hexdigest() != digest:
                    raise WireError(f"{self._path.name}: a stored block does not match its digest")
                return data
            at += size
        raise WireError(f"{self._path.name}: has no block {name!r}")


def _header(data: bytearray, limits: Limits, kinds: tuple[str, ...]) -> Header | None:
    if len(data) < PREFIX.size:
        if not MAGIC.startswith(bytes(data[: len(MAGIC)])):
            raise WireError("not a heatfhe message: wrong magic; see docs/formats.md")
        return None
    magic, version, flags, length = PREFIX.unpack_from(data)
    if magic != MAGIC:
        raise WireError("not a heatfhe message: wrong magic; see docs/formats.md")
    if version != VERSION:
        raise WireError(f"message version {version} is not among those read ({VERSION}); upgrade the older side")
    if flags != 0:
        raise WireError("a message sets flags that version 1 does not define; see docs/formats.md")
    if length > limits.header_bytes:
        raise TooLargeError(f"a message header of {length} bytes exceeds {limits.header_bytes}; send fewer blocks")
    if len(data) < PREFIX.size + length:
        return None
    text = bytes(data[PREFIX.size : PREFIX.size + length])
    items = 64 + 3 * limits.blocks  # a block has three fields; the rest of a header has a dozen
    said = strict_json(text, limit=limits.header_bytes, items=items)
    if canonical_json(said) != text:
        raise WireError("a message header is not canonical JSON; see docs/formats.md")
    fields = Fields(said, of="message header")
    kind, plan, body = fields.choice("kind", kinds), fields.digest("plan"), fields.object("body")
    listing = fields.array("blocks", longest=limits.blocks)
    fields.done()
    blocks, names = [], set()
    for entry in listing:
        row = Fields(entry, of="message block")
        name, size, digest = row.name("name"), row.integer("size", lo=0, hi=1 << 50), row.digest("sha256")
        if size > limits.block_bytes:
            raise TooLargeError(f"a block of {size} bytes exceeds the limit of {limits.block_bytes}; send less")
        row.done()
        if name in names:
            raise WireError("two blocks of a message share a name; see docs/formats.md")
        names.add(name)
        blocks.append((name, size, digest))
    header = Header(kind=kind, plan=plan, body=body, blocks=tuple(blocks), offset=PREFIX.size + length)
    if header.total > limits.total_bytes:
        raise TooLargeError(f"a message of {header.total} bytes exceeds the limit of {limits.total_bytes}; send less")
    return header
