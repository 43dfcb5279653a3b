# SPDX-License-Identifier: Apache-2.0
"""JSON from strangers: bounded, without duplicates, NaN or surprises, and with every field checked before use."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

from heatfhe.errors import WireError
from heatfhe.files import parse_json

T = TypeVar("T")
DIGEST = re.compile(r"[0-9a-f]{64}")
IDENTIFIER = re.compile(r"[0-9a-f]{32}")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:+=-]*(?:/[A-Za-z0-9][A-Za-z0-9._:+=-]*)*")
MAX_NAME, MAX_DIGITS, MAX_DEPTH = 128, 16, 12


def strict_json(data: bytes, *, limit: int, items: int | None = None) -> dict[str, Any]:
    """The JSON object in data, at most ``limit`` bytes; anything odd raises WireError.

    ``items`` bounds the commas in it, which bound its values: counted before anything is parsed, since parsing a
    million small values takes a thousand times as long as counting them.
    """
    if len(data) > limit:
        raise WireError(f"a JSON part of {len(data)} bytes exceeds its limit of {limit}; send less")
    if items is not None and data.count(b",") > items:
        raise WireError(f"a JSON part holds more than {items} commas; see docs/formats.md")
    try:
        value = parse_json(data, depth=MAX_DEPTH, digits=MAX_DIGITS)
    except ValueError as err:
        raise WireError("a JSON part is not valid JSON of the kind documented; see docs/formats.md") from err
    if not isinstance(value, dict):
        raise WireError("a JSON part is not an object; see docs/formats.md")
    return value


class Fields:
    """The fields of one JSON object, taken one by one with their types; ``done`` refuses what is left over."""

    def __init__(self, body: Any, *, of: str) -> None:
        if not isinstance(body, dict):
            raise WireError(f"{of}: expected an object; see docs/formats.md")
        self._body, self._of = dict(body), of

    def _take(self, name: str, kind: type[T], expected: str, fits: Callable[[T], bool] = lambda _: True) -> T:
        if name not in self._body:
            raise WireError(f"{self._of}: field {name!r} is missing; see docs/formats.md")
        value = self._body.pop(name)
        if type(value) is not kind or not fits(value):
            raise self._wrong(name, expected)
        return value

    def _wrong(self, name: str, expected: str) -> WireError:
        return WireError(f"{self._of}: field {name!r} must be {expected}; see docs/formats.md")

    def integer(self, name: str, *, lo: int, hi: int) -> int:
        return self._take(name, int, f"an integer from {lo} to {hi}", lambda v: lo <= v <= hi)

    def number(self, name: str, *, lo: float, hi: float) -> float:
        kind: type[float] = int if type(self._body.get(name)) is int else float
        return float(self._take(name, kind, f"a number from {lo:g} to {hi:g}", lambda v: lo <= v <= hi))

    def flag(self, name: str) -> bool:
        return self._take(name, bool, "true or false")

    def choice(self, name: str, among: tuple[str, ...]) -> str:
        return self._take(name, str, "one of " + ", ".join(among), among.__contains__)

    def text(self, name: str, *, longest: int = 200) -> str:
        return self._take(name, str, f"a string of at most {longest} characters", lambda v: len(v) <= longest)

    def name(self, name: str) -> str:
        return self._take(name, str, "a name of letters, digits and ._:+=-/ without empty or dotted parts", is_name)

    def digest(self, name: str) -> str:
        return self._take(name, str, "64 lower-case hexadecimal digits", lambda v: bool(DIGEST.fullmatch(v)))

    def identifier(self, name: str) -> str:
        return self._take(name, str, "32 lower-case hexadecimal digits", lambda v: bool(IDENTIFIER.fullmatch(v)))

    def object(self, name: str) -> dict[str, Any]:
        return self._take(name, dict, "an object")

    def array(self, name: str, *, longest: int) -> list[Any]:
        return self._take(name, list, f"an array of at most {longest} entries", lambda v: len(v) <= longest)

    def _entries(self, name: str, longest: int, expected: str, fits: Callable[[Any], bool]) -> tuple[Any, ...]:
        values = self.array(name, longest=longest)
        if not all(map(fits, values)):
            raise self._wrong(name, expected)
        return tuple(values)

    def names(self, name: str, *, longest: int) -> tuple[str, ...]:
        plain = "names of letters, digits and ._:+=-/"
        return self._entries(name, longest, plain, lambda v: isinstance(v, str) and is_name(v))

    def integers(self, name: str, *, lo: int, hi: int, longest: int) -> tuple[int, ...]:
        return self._entries(name, longest, f"integers from {lo} to {hi}", lambda v: type(v) is int and lo <= v <= hi)

    def done(self) -> None:
        """Refuse fields nobody asked for."""
        if self._body:
            raise WireError(f"{self._of}: unknown field {sorted(self._body)[0][:64]!r}; see docs/formats.md")


def is_name(text: str) -> bool:
    """Whether text may name a block or a key: short, plain, and harmless even if someone used it as a path."""
    return len(text) <= MAX_NAME and NAME.fullmatch(text) is not None and ".." not in text
