# SPDX-License-Identifier: Apache-2.0
"""Changes to valid files and messages, each with every hash recomputed: what somebody hostile would send, not chance.

A JSON value is changed at one place (another type, another size, a neighbour's value, a key more or less or twice) or
gets text no JSON writer makes (NaN, 1e999, thousands of digits or brackets, half a surrogate pair). Bytes are flipped,
cut, repeated, overwritten; the caller seals them again. The same seed gives the same changes.
"""

from __future__ import annotations

import copy
import hashlib
import json
import random
import struct
from collections.abc import Callable
from typing import Any

RAW = "@raw{}@"  # stands for RAW_TEXTS[n] until the value is written
RAW_TEXTS = (
    "NaN", "Infinity", "-Infinity", "1e999", "-1e999", "9" * 5000, "-" + "9" * 400, "[" * 3000 + "]" * 3000,
    '{"a":' * 900 + "1" + "}" * 900, "[" * 100_000, '"\\ud800"', '{"a":1,"a":2}', "-0", "1E2", "1e-400", "0x10", "'a'",
    "01", "[1,]", '"\x01"', "1e400000", "\ufeff1", '"\\u0000"',
)  # fmt: skip
ODD: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 3, 0.5, -0.5, 1.0, 1e300, -1e300, 5e-324, 1e9, 10**9,
    2**31, 2**63, -(2**63), 10**30,
    "", "1", "x", "\x00", "../x", "/etc/passwd", "é", "a" * 5000, [], {}, [0], [[]], {"": 0}, {"x": None}, ["x"] * 300,
)  # fmt: skip


def changed(value: Any, rng: random.Random) -> Any:
    """A copy of a JSON value with one place changed; placeholders of raw text may stand in it (``written``)."""
    top: dict[str, Any] = {"": value}
    holder: Any = top
    key: Any = ""
    for part in rng.choice(rng.choice(_places(value))):  # copying what is met
        holder[key] = copy.copy(holder[key])
        holder, key = holder[key], part
    if isinstance(holder[key], (dict, list)):
        holder[key] = copy.copy(holder[key])
    rng.choice(_CHANGES)(holder, key, rng)
    return top.get("")


_known: list[tuple[Any, list[list[tuple[Any, ...]]]]] = []


def _places(value: Any) -> list[list[tuple[Any, ...]]]:
    """Every place of a value, gathered by kind: the bound of the first step and that of the last are one kind."""
    for held, places in _known:
        if held is value:
            return places
    found: dict[tuple[Any, ...], list[tuple[Any, ...]]] = {}
    waiting: list[tuple[Any, tuple[Any, ...], tuple[Any, ...]]] = [(value, (), ())]
    while waiting:
        item, path, kind = waiting.pop()
        found.setdefault(kind, []).append(path)
        if isinstance(item, dict):
            waiting += [(child, (*path, k), (*kind, k)) for k, child in item.items()]
        elif isinstance(item, list):
            waiting += [(child, (*path, i), (*kind, min(i, 1))) for i, child in enumerate(item)]
    places = list(found.values())
    if sum(map(len, places)) > 300:
        _known.append((value, places))
    return places


def _odd(holder: Any, key: Any, rng: random.Random) -> None:
    holder[key] = copy.deepcopy(rng.choice(ODD))


def _raw(holder: Any, key: Any, rng: random.Random) -> None:
    holder[key] = RAW.format(rng.randrange(len(RAW_TEXTS)))


def _nudge(holder: Any, key: Any, rng: random.Random) -> None:
    value = holder[key]
    if isinstance(value, bool):
        holder[key] = not value
    elif isinstance(value, (int, float)):
        holder[key] = rng.choice(
            (value + 1, value - 1, -value, value * 2, value / 2, value * 1e6, float(value), value * value)
        )
    elif isinstance(value, str):
        other = (
            value[:-1],
            value + "x",
            value[::-1],
            value.upper(),
            value + "\x00",
            f" {value}",
            str(len(value)),
            value * 9,
        )
        holder[key] = rng.choice(other)
    elif value is None:
        _odd(holder, key, rng)
    else:
        _resize(holder, key, rng)


def _resize(holder: Any, key: Any, rng: random.Random) -> None:
    value = holder[key]
    if isinstance(value, list) and value:
        i = rng.randrange(len(value))
        rng.choice((lambda: value.pop(i), lambda: value.append(value[i]), lambda: value.reverse(), value.clear))()
    elif isinstance(value, dict):
        if value and rng.random() < 0.5:
            name = rng.choice(list(value))
            value[rng.choice(("x", name.upper(), name + " ", ""))] = value.pop(name)
        else:
            value["surprise"] = rng.choice(ODD)
    else:
        _odd(holder, key, rng)


def _remove(holder: Any, key: Any, rng: random.Random) -> None:
    del holder[key]


def _neighbour(holder: Any, key: Any, rng: random.Random) -> None:
    other = rng.choice(list(holder)) if isinstance(holder, dict) else rng.randrange(len(holder))
    holder[key] = copy.deepcopy(holder[other])


def _twice(holder: Any, key: Any, rng: random.Random) -> None:
    if isinstance(holder, dict):
        holder[f"@twice@{key}"] = rng.choice(ODD)
    else:
        holder.insert(key, copy.deepcopy(holder[key]))


_CHANGES: tuple[Callable[[Any, Any, random.Random], None], ...] = (
    _odd, _odd, _odd, _raw, _raw, _nudge, _nudge, _nudge, _resize, _remove, _neighbour, _twice,
)  # fmt: skip


def written(value: Any, *, indent: int | None = None) -> bytes:
    """The text of a changed value, raw parts put in."""
    text = json.dumps(value, sort_keys=True, indent=indent, separators=None if indent else (",", ":"))
    text = text.replace('"@twice@', '"')
    for number, raw in enumerate(RAW_TEXTS):
        text = text.replace(f'"{RAW.format(number)}"', raw)
    return text.encode("utf-8", "surrogatepass")


def digest(text: bytes) -> str:
    """The digest a trusting reader would compute of this JSON; of the bytes where there is none."""
    try:
        plain = json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"))
    except (ValueError, RecursionError):
        return hashlib.sha256(text).hexdigest()
    return hashlib.sha256(plain.encode()).hexdigest()


def plain(text: bytes) -> Any:
    """What the JSON says to a reader without suspicion; None where it cannot be read at all."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def file_of(kind: str, version: int, body: Any, rng: random.Random) -> bytes:
    """One of our JSON files with its body changed and its digest right; or, now and then, its envelope changed."""
    if rng.random() < 0.06:
        head = {"kind": kind, "version": version, "digest": digest(written(body)), "body": body}
        return (
            scrambled(written(changed(head, rng), indent=1), rng)
            if rng.random() < 0.5
            else scrambled(written(head), rng)
        )
    text = written(changed(body, rng))
    start = f'{{"digest":"{digest(text)}","kind":"{kind}","version":{version},"body":'
    return start.encode() + text + b"}"


def scrambled(data: bytes, rng: random.Random) -> bytes:
    """Bytes flipped, cut, repeated, overwritten or in another encoding; nothing is sealed again."""
    raw, at = bytearray(data), rng.randrange(max(1, len(data)))
    how = rng.randrange(8)
    if how == 0 and raw:
        raw[at] ^= 1 << rng.randrange(8)
    elif how == 1:
        del raw[at:]
    elif how == 2:
        raw[at:at] = rng.randbytes(rng.randrange(1, 40))
    elif how == 3:
        del raw[at : at + rng.randrange(1, 40)]
    elif how == 4:
        raw[at : at + 8] = rng.choice(
            (bytes(8), b"\xff" * 8, struct.pack("<q", rng.randrange(-9, 9)), struct.pack("<d", 1e300))
        )
    elif how == 5:
        other = rng.randrange(len(raw) + 1)
        raw[at:at] = raw[other : other + rng.randrange(1, 200)]
    elif how == 6:
        return data.decode("latin-1").encode("utf-16") if rng.random() < 0.5 else b"\xef\xbb\xbf" + data
    else:
        raw += rng.randbytes(rng.randrange(1, 40))
    return bytes(raw)


def overwritten(data: bytes, rng: random.Random, *, head: int) -> bytes:
    """Bytes scrambled, in the first ``head`` of them as often as in all the rest: fields stand there."""
    if rng.random() < 0.5:
        return scrambled(data, rng)
    raw, at = bytearray(data), rng.randrange(min(head, len(data)))
    new = rng.choice(
        (
            b"\x00",
            b"\xff",
            b"\x01",
            b"\xff\xff\xff\xff",
            bytes(4),
            rng.randbytes(1),
            struct.pack("<I", 1 << rng.randrange(32)),
        )
    )
    raw[at : at + len(new)] = new
    return bytes(raw[: len(data)])


def tensors_of(data: bytes, rng: random.Random) -> bytes:
    """A safetensors file with its header, or its numbers, changed; lengths are right where that is possible."""
    size = int.from_bytes(data[:8], "little")
    header, rest = json.loads(data[8 : 8 + size]), data[8 + size :]
    how = rng.randrange(6)
    if how == 0:
        return scrambled(data, rng)
    if how == 1 and rest:
        raw, at = bytearray(rest), 4 * rng.randrange(max(1, len(rest) // 4))
        raw[at : at + 4] = struct.pack("<f", rng.choice((float("nan"), float("inf"), -float("inf"), 1e38, 0.0, 1.0)))
        rest = bytes(raw[: len(rest)])
    elif how == 2 and rest:
        rest = rest[: rng.randrange(len(rest))] if rng.random() < 0.5 else rest + bytes(rng.randrange(1, 99))
    elif how == 3 and len(header) > 1:
        a, b = rng.sample([k for k in header if k != "__metadata__"], 2)
        header[a], header[b] = header[b], header[a]
    elif how == 4:
        name = rng.choice([k for k in header if k != "__metadata__"] or [""])
        if name:
            header[name]["dtype"] = rng.choice(("F16", "BF16", "I32", "U8", "F64", "BOOL", "F8_E4M3", "X", "I64"))
    else:
        header = changed(header, rng)
    text = written(header)
    return struct.pack("<Q", len(text)) + text + rest
