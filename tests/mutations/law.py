# SPDX-License-Identifier: Apache-2.0
"""One format and its law: how a valid example is changed, and what a reader may make of the change."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heatfhe.errors import HeatError
from tests.mutations.mutator import digest, file_of, plain, written


class WrongError(AssertionError):
    """Something was accepted that does not say what was read."""


@dataclass(frozen=True)
class Format:
    """``change`` makes a case of random numbers; ``read`` accepts it and holds it to its law, or raises HeatError."""

    name: str
    share: int
    change: Callable[[random.Random], Any]
    read: Callable[[Any], None]


def same(a: Any, b: Any) -> bool:
    """Whether two values are the same JSON: 1 is 1.0, true is not 1. Ours, not the package's own."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    numbers = [isinstance(v, (int, float)) and not isinstance(v, bool) for v in (a, b)]
    return bool(a == b) and (all(numbers) or type(a) is type(b))


def hold(law: bool, why: str) -> None:
    if not law:
        raise WrongError(why)


def json_file(
    name: str, share: int, folder: Path, kind: str, version: int, body: dict[str, Any],
    load: Callable[[Path], Any], use: Callable[[Any], None],
) -> Format:  # fmt: skip
    """A format that is one JSON file of ours."""
    path = folder / f"{name}.json"

    def read(data: bytes) -> None:
        path.write_bytes(data)
        made = load(path)
        said = plain(data)
        hold(isinstance(said, dict) and same(made.as_json(), said["body"]), "read as something else")
        use(made)

    return Format(name, share, lambda rng: file_of(kind, version, body, rng), read)


def refused(format: Format, case: Any) -> bool:
    """Whether a case was refused; anything but a HeatError passes through."""
    try:
        format.read(case)
    except HeatError:
        return True
    return False


def sealed(kind: str, version: int, body: Any) -> bytes:
    text = written(body)
    return f'{{"digest":"{digest(text)}","kind":"{kind}","version":{version},"body":'.encode() + text + b"}"


def tensors_in(data: bytes) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """A safetensors file by its own description, without its library."""
    size = int.from_bytes(data[:8], "little")
    rows = {k: v for k, v in json.loads(data[8 : 8 + size]).items() if k != "__metadata__"}
    rest = data[8 + size :]
    return {k: (v["dtype"], tuple(v["shape"]), rest[slice(*v["data_offsets"])]) for k, v in rows.items()}


def tensor_form(value: Any) -> tuple[str, tuple[int, ...], bytes]:
    """The same of an array in memory."""
    return f"F{8 * value.dtype.itemsize}", tuple(value.shape), value.tobytes()
