# SPDX-License-Identifier: Apache-2.0
"""A packed program: the primitive steps of one token, each with its level, ready for an engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any

from heatfhe.errors import ConfigError
from heatfhe.files import plain, remade
from heatfhe.planning.instructions import KINDS, Instruction
from heatfhe.planning.plaintexts import Public
from heatfhe.planning.weights import Weight, parse_weight


class ProgramName(str, Enum):
    """What one run of a plan does with one token; its value is the name in plan files and on the command line.

    prompt: the cache filled, no head. generate: the next token, as a one-hot row and as the next input. logits: the
    logits themselves. sample: as generate, with an encrypted noise row added to the logits. embed: a one-hot row as an
    input. prefill: as prompt, for all tokens of a prompt at once. classify: the logits of an image, from all its rows.
    """

    PROMPT = "prompt"
    GENERATE = "generate"
    LOGITS = "logits"
    SAMPLE = "sample"
    EMBED = "embed"
    PREFILL = "prefill"
    CLASSIFY = "classify"

    __str__ = str.__str__
    __repr__ = str.__repr__


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One instruction. ``results`` and ``args`` are value numbers, ``level`` is that of the results.

    ``plains`` are what it meets, with ``part`` saying which ciphertext of a split value that is. ``by``
    are rotations; with a ``modulus`` the rotation is by * (position mod modulus). A bootstrap's magnitude is at most
    bound * ((position + 1) / context)^rows.
    """

    kind: str
    results: tuple[int, ...]
    args: tuple[int, ...]
    level: int
    operator: str = ""
    name: str = ""
    plains: tuple[Public, ...] = ()
    part: int = 0
    by: tuple[int, ...] = ()
    modulus: int = 0
    number: int = 0
    product: Weight | None = None
    period: int = 0
    bound: float = 0.0
    rows: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in KINDS or self.row.call is None:
            known = ", ".join(kind for kind, row in KINDS.items() if row.call is not None)
            raise ConfigError(f"unknown step {self.kind!r}; have {known}")
        if self.level < 0:
            raise ConfigError(f"{self.name}: {self.kind} ends at level {self.level}, below zero")

    @property
    def row(self) -> Instruction:
        """What is known of its kind."""
        return KINDS[self.kind]

    @property
    def moves(self) -> bool:
        """Whether it depends on the position."""
        return bool(self.modulus or self.rows) or any(p.moves for p in self.plains)

    def as_json(self) -> dict[str, Any]:
        """Plain JSON form without defaults."""
        out = {}
        for f in fields(self):
            value = getattr(self, f.name)
            if value != f.default:
                out[f.name] = list(value) if isinstance(value, tuple) else value
        if self.plains:
            out["plains"] = [p.key for p in self.plains]
        return out if self.product is None else {**out, "product": self.product.key}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Step:
        """Inverse of as_json."""
        values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in body.items()}
        if "plains" in values:
            values["plains"] = tuple(Public.parse(key) for key in values["plains"])
        if "product" in values:
            values["product"] = parse_weight(values["product"])
        return cls(**values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """A named value that enters or leaves a program: its value numbers, one per ciphertext, and its level."""

    values: tuple[int, ...]
    level: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """The steps of one token, what they read and what they give back."""

    name: str
    steps: tuple[Step, ...]
    inputs: Mapping[str, Port]
    outputs: Mapping[str, Port]
    predicted_seconds: float = 0.0

    def __repr__(self) -> str:
        return f"Program({self.name}: {len(self.steps)} steps, {len(self.bootstraps())} bootstraps)"

    def last_use(self) -> dict[int, int]:
        """Index of the last step that reads each value; outputs are never freed."""
        last = {a: i for i, step in enumerate(self.steps) for a in step.args}
        for port in self.outputs.values():
            last.update({v: len(self.steps) for v in port.values})
        return last

    def levels(self) -> dict[int, int]:
        """The level of every value."""
        made = {v: port.level for port in self.inputs.values() for v in port.values}
        return made | {v: step.level for step in self.steps for v in step.results}

    def bootstraps(self) -> list[Step]:
        """Every bootstrap."""
        return [s for s in self.steps if s.row.refreshes]

    def counts(self) -> dict[str, Counter[str]]:
        """Steps by operator and kind."""
        out: dict[str, Counter[str]] = {}
        for s in self.steps:
            out.setdefault(s.operator, Counter())[s.kind] += 1
        return out

    def as_json(self) -> dict[str, Any]:
        """Plain JSON form."""
        return plain(self)

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Program:
        """Inverse of as_json."""
        return remade(cls, body)
