# SPDX-License-Identifier: Apache-2.0
"""JSON from strangers: bounded, without duplicates, NaN or surprises, and with every field checked before use."""

from __future__ import annotations

import re
from typing import Any

from heatfhe.errors import WireError
from heatfhe.files import parse_json

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

    def _take(self, name: str) -> Any:
        if name not in self._body:
            raise WireError(f"{self._of}: field {name!r} is missing; see docs/formats.md")
        return self._body.pop(name)

    def _wrong(self, name: str, expected: str) -> WireError:
        return WireError(f"{self._of}: field {name!r} must be {expected}; see docs/formats.md")

    def integer(self, name: str, *, lo: int, hi: int) -> int:
        value = self._take(name)
        if type(value) is not int or not lo <= value <= hi:
            raise self._wrong(name, f"an integer from {lo} to {hi}")
        return value

    def number(self, name: str, *, lo: float, hi: float) -> float:
        value = self._take(name)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not lo <= value <= hi:
            raise self._wrong(name, f"a number from {lo:g} to {hi:g}")
        return float(value)

    def flag(self, name: str) -> bool:
        value = self._take(name)
        if not isinstance(value, bool):
            raise self._wrong(name, "true or false")
        return value

    def choice(self, name: str, among: tuple[str, ...]) -> str:
        value = self._take(name)
        if not isinstance(value, str) or value not in among:
            raise self._wrong(name, "one of " + ", ".join(among))
        return value

    def text(self, name: str, *, longest: int = 200) -> str:
        value = self._take(name)
        if not isinstance(value, str) or len(value) > longest:
            raise self._wrong(name, f"a string of at most {longest} characters")
        return value

    def name(self, name: str) -> str:
        value = self._take(name)
        if not isinstance(value, str) or not is_name(value):
            raise self._wrong(name, "a name of letters, digits and ._:+=-/ without empty or dotted parts")
        return value

    def names(self, name: str, *, longest: int) -> tuple[str, ...]:
        values = self.array(name, longest=longest)
        if any(not isinstance(v, str) or not is_name(v) for v in values):
            raise self._wrong(name, "names of letters, digits and ._:+=-/")
        return tuple(values)

    def digest(self, name: str) -> str:
        value = self._take(name)
        if not isinstance(value, str) or not DIGEST.fullmatch(value):
            raise self._wrong(name, "64 lower-case hexadecimal digits")
        return value

    def identifier(self, name: str) -> str:
        value = self._take(name)
        if not isinstance(value, str) or not IDENTIFIER.fullmatch(value):
            raise self._wrong(name, "32 lower-case hexadecimal digits")
        return value

    def array(self, name: str, *, longest: int) -> list[Any]:
        value = self._take(name)
        if not isinstance(value, list) or len(value) > longest:
            raise self._wrong(name, f"an array of at most {longest} entries")
        return value

    def integers(self, name: str, *, lo: int, hi: int, longest: int) -> tuple[int, ...]:
        values = self.array(name, longest=longest)
        if any(type(v) is not int or not lo <= v <= hi for v in values):
            raise self._wrong(name, f"integers from {lo} to {hi}")
        return tuple(values)

    def object(self, name: str) -> dict[str, Any]:
        value = self._take(name)
        if not isinstance(value, dict):
            raise self._wrong(name, "an object")
        return value

    def done(self) -> None:
        """Refuse fields nobody asked for."""
        if self._body:
            raise WireError(f"{self._of}: unknown field {sorted(self._body)[0][:64]!r}; see docs/formats.md")


def is_name(text: str) -> bool:
    """Whether text may name a block or a key: short, plain, and harmless even if someone used it as a path."""
    return len(text) <= MAX_NAME and NAME.fullmatch(text) is not None and ".." not in text
