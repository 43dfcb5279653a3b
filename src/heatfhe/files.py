# SPDX-License-Identifier: Apache-2.0
"""Files written whole or not at all, and read with suspicion: kind, version, digest."""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import fields, is_dataclass
from functools import lru_cache, partial
from pathlib import Path
from types import UnionType
from typing import Any, BinaryIO, Literal, Protocol, TypeVar, Union, get_args, get_origin, get_type_hints

from heatfhe.errors import FileFormatError, HeatError

T = TypeVar("T")
R = TypeVar("R", bound="Record")
MAX_DEPTH, MAX_DIGITS = 32, 64  # of the JSON in our own files


@contextmanager
def atomic_write(path: str | Path) -> Iterator[BinaryIO]:
    """Open a file that appears under its name only when the block ends without an error."""
    path = Path(path)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as f:
            yield f
            f.flush()
            os.fsync(f.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def atomic_directory(path: str | Path) -> Iterator[Path]:
    """Fill a directory that appears under its name only when the block ends without an error.

    An existing directory of that name is replaced as a whole; it survives if the block fails.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    old = path.with_name(f".{path.name}.{os.getpid()}.old")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        yield partial
        if path.exists():
            os.replace(path, old)
        try:
            os.replace(partial, path)
        except OSError:
            if old.exists():
                os.replace(old, path)
            raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes, in hex."""
    sha = hashlib.sha256()
    with path.open("rb") as f:
        while block := f.read(1 << 20):
            sha.update(block)
    return sha.hexdigest()


def canonical_json(value: Any) -> bytes:
    """The one byte form of a JSON value: sorted keys, no spaces, no NaN. What digests are taken of."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def json_digest(value: Any) -> str:
    """SHA-256 of a JSON value's canonical form, in hex."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


def json_record(kind: str, version: int, body: Mapping[str, Any]) -> bytes:
    """The bytes of a versioned JSON file, its own digest inside."""
    head = {"kind": kind, "version": version, "digest": json_digest(body)}
    return json.dumps({**head, "body": body}, indent=1, sort_keys=True, allow_nan=False).encode() + b"\n"


def write_json(path: str | Path, kind: str, version: int, body: Mapping[str, Any]) -> None:
    """Write a versioned JSON file atomically, its own digest inside."""
    with atomic_write(path) as f:
        f.write(json_record(kind, version, body))


def parse_json(data: bytes, *, depth: int, digits: int) -> Any:
    """A JSON value without surprises; a ValueError says what is odd about any other.

    UTF-8 alone, no key twice, every number finite, integers of at most ``digits`` characters, values at most ``depth``
    deep, and no half of a surrogate pair, which no file name or digest could hold.
    """

    def small(text: str) -> int:
        if len(text) > digits:
            raise ValueError(f"an integer of {len(text)} characters")
        return int(text)

    def finite(text: str) -> float:
        if not math.isfinite(value := float(text)):
            raise ValueError("a number that is not finite")
        return value

    try:
        value = json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_no_duplicates,
            parse_constant=finite,
            parse_float=finite,
            parse_int=small,
        )
    except RecursionError as err:
        raise ValueError("nested too deeply") from err
    level = [value]
    for _ in range(depth):
        below: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                "".join(item).encode()
                below += item.values()
            elif isinstance(item, list):
                below += item
            elif isinstance(item, str):
                item.encode()
        level = below
    if level:
        raise ValueError(f"nested more than {depth} deep")
    return value


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        raise ValueError("a key stands twice in one object")
    return out


def read_json(path: str | Path, kind: str, versions: tuple[int, ...]) -> dict[str, Any]:
    """Read a file of write_json: refuses another kind, an unknown version, and any change to the body."""
    try:
        data = Path(path).read_bytes()
    except FileNotFoundError as err:
        raise FileFormatError(f"{path}: no such file; expected a {kind} file") from err
    except OSError as err:
        raise FileFormatError(f"{path}: cannot be read ({err.strerror}); expected a {kind} file") from err
    return parse_record(data, path, kind, versions)


def parse_record(data: bytes, path: str | Path, kind: str, versions: tuple[int, ...]) -> dict[str, Any]:
    """The body of a file of write_json from its bytes; ``path`` is for what is said of it."""
    try:
        raw = parse_json(data, depth=MAX_DEPTH, digits=MAX_DIGITS)
    except ValueError as err:
        raise FileFormatError(
            f"{path}: not valid JSON ({err}); the file is truncated or altered, make it again"
        ) from err
    if not isinstance(raw, dict) or raw.get("kind") != kind or not isinstance(raw.get("body"), dict):
        found = str(raw.get("kind") if isinstance(raw, dict) else type(raw).__name__)[:64]
        raise FileFormatError(f"{path}: expected a {kind} file, found {found!r}")
    version = raw.get("version")
    if type(version) is not int or version not in versions:
        raise FileFormatError(
            f"{path}: {kind} version {str(version)[:64]} is not among those this release reads {versions}; "
            "upgrade heatfhe or export the file again"
        )
    body: dict[str, Any] = raw["body"]
    if len(raw) != 4 or raw.get("digest") != json_digest(body):
        raise FileFormatError(f"{path}: its digest does not match its body; the file was altered, make it again")
    return body


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a log, one JSON object a line; a line that was half written is left out."""
    lines = []
    for line in path.read_text().splitlines():
        with suppress(ValueError):
            lines.append(json.loads(line))
    return lines


def plain(record: Any, names: Iterable[str] | None = None) -> dict[str, Any]:
    """A dataclass as JSON: its fields of these names, or all, in order. What is inside it becomes JSON as well."""
    chosen = (f.name for f in fields(record)) if names is None else names
    return {name: _plain(getattr(record, name)) for name in chosen}


def _plain(value: Any) -> Any:
    if hasattr(value, "as_json"):
        return value.as_json()
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    return plain(value) if is_dataclass(value) else value


def existing(body: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON object in which a number that does not exist is null."""
    found: dict[str, Any] = json.loads(json.dumps(body), parse_constant=lambda _: None)
    return found


def remade(kind: type[T], body: Any) -> T:
    """Inverse of plain: the dataclass whose fields a JSON object holds, each part made as its type says.

    A part whose class has a ``from_json`` is made by that. Nothing is bent to fit but an integer to a float: what is of
    another kind stays as it is, for ``rebuilt`` to refuse.
    """
    hints = get_type_hints(kind)
    if unknown := sorted(set(body) - set(hints)):
        raise ValueError(f"unexpected keyword {unknown[0][:64]!r}")
    return kind(**{name: _maker(hints[name])(value) for name, value in body.items()})


@lru_cache(maxsize=512)
def _maker(kind: Any) -> Callable[[Any], Any]:
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        options = [option for option in args if option is not type(None)]
        if len(options) > 1:  # of several classes the one that has these fields
            names = [{f.name for f in fields(option)} for option in options]
            return lambda value: _maker(options[names.index(set(value))])(value)
        only = _maker(options[0])
        return lambda value: None if value is None else only(value)
    if origin is tuple:
        each = [_maker(a) for a in args if a is not Ellipsis]
        return lambda value: tuple(fit(v) for fit, v in zip(each * len(value), value))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        item = _maker(args[1])
        return lambda value: {key: item(v) for key, v in value.items()}
    if kind is float:
        return lambda value: float(value) if type(value) is int else value
    if isinstance(kind, type) and is_dataclass(kind):
        return getattr(kind, "from_json", None) or partial(remade, kind)
    return Path if kind is Path else lambda value: value


class Record(Protocol):
    """What a file can hold: a dataclass that knows its plain JSON form."""

    def as_json(self) -> dict[str, Any]: ...


def read_record(
    path: str | Path, kind: str, versions: tuple[int, ...], make: Callable[[dict[str, Any]], R], *, remedy: str
) -> R:
    """What ``make`` builds of a file of write_json, checked as ``rebuilt`` does."""
    return rebuilt(make, read_json(path, kind, versions), where=str(path), remedy=remedy)


def rebuilt(make: Callable[[Any], R], body: Any, *, where: str, remedy: str) -> R:
    """The record that ``make`` builds of a JSON value; a FileFormatError unless the two say the same.

    Every field has the type its class declares, and the record written again is the JSON it came from: nothing was
    left out, added or bent into another kind (``true`` is no number, ``"1"`` neither; 1 and 1.0 are the same one).
    """
    try:
        made = make(body)
        fits = typed(made, type(made)) and same_json(made.as_json(), body)
    except HeatError as err:
        raise FileFormatError(f"{where}: {str(err)[:500]}; {remedy}") from err
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as err:
        raise FileFormatError(f"{where}: a field is missing or of the wrong kind ({str(err)[:200]}); {remedy}") from err
    if not fits:
        raise FileFormatError(f"{where}: a field is missing, unknown or of the wrong kind; {remedy}")
    return made


def same_json(a: Any, b: Any) -> bool:
    """Whether two values are the same JSON; a tuple is a list, 1 is 1.0, and true is not 1."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(same_json(value, b[key]) for key, value in a.items())
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(same_json, a, b))
    if isinstance(a, (int, float)) and isinstance(b, (int, float)):
        return a == b and isinstance(a, bool) == isinstance(b, bool)
    return type(a) is type(b) and bool(a == b)


def typed(value: Any, kind: Any) -> bool:
    """Whether a value has the type an annotation says, down to the fields of dataclasses. An int passes for a float."""
    return _fits(kind)(value)


@lru_cache(maxsize=512)
def _fits(kind: Any) -> Callable[[Any], bool]:
    origin, args = get_origin(kind), get_args(kind)
    if kind is Any:
        return lambda value: True
    if origin in (Union, UnionType):
        options = [_fits(a) for a in args]
        return lambda value: any(fits(value) for fits in options)
    if origin is Literal:
        return lambda value: type(value) is str and value in args
    if origin is tuple and args[-1] is Ellipsis:
        one = _fits(args[0])
        return lambda value: isinstance(value, tuple) and all(map(one, value))
    if origin is tuple:
        each = [_fits(a) for a in args]
        return lambda value: (
            isinstance(value, tuple) and len(value) == len(each) and all(fits(v) for fits, v in zip(each, value))
        )
    if isinstance(origin, type) and issubclass(origin, Mapping):
        key, item = _fits(args[0]), _fits(args[1])
        return lambda value: isinstance(value, Mapping) and all(map(key, value)) and all(map(item, value.values()))
    if kind is float:
        return lambda value: type(value) in (float, int)
    if isinstance(kind, type) and is_dataclass(kind):
        hints = get_type_hints(kind)
        parts = [(f.name, hints[f.name]) for f in fields(kind)]  # looked up when used: a class may hold its own kind
        return lambda value: isinstance(value, kind) and all(_fits(hint)(getattr(value, name)) for name, hint in parts)
    return lambda value: type(value) is kind
