# SPDX-License-Identifier: Apache-2.0
"""The counting engine: computes nothing, tallies instructions and levels; catches plan bugs in milliseconds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from heatfhe.ckks.params import Params
from heatfhe.engine import KeyRequest, LinearMap, Plain
from heatfhe.errors import EngineError, MissingKeyError, OutOfLevelsError


@dataclass(frozen=True, slots=True)
class Counted:
    """A value of which only the level is known."""

    level: int


class CountingEngine:
    """Counts what a real engine would do; rotations outside the request are refused."""

    def __init__(self, params: Params, *, request: KeyRequest | None = None) -> None:
        self._params, self.request = params, request
        self.counts: Counter[str] = Counter()
        self.used: set[int] = set()

    @property
    def params(self) -> Params:
        return self._params

    def value(self, level: int | None = None) -> Counted:
        """A fresh value."""
        return Counted(self._params.levels if level is None else level)

    def level(self, a: Counted) -> int:
        return a.level

    def add(self, a: Counted, b: Counted) -> Counted:
        return self._free("add", a, b)

    def sub(self, a: Counted, b: Counted) -> Counted:
        return self._free("sub", a, b)

    def negate(self, a: Counted) -> Counted:
        return self._free("negate", a)

    def add_plain(self, a: Counted, p: Plain) -> Counted:
        return self._free("add_plain", a)

    def times(self, a: Counted, k: int) -> Counted:
        return self._free("times", a)

    def times_i(self, a: Counted) -> Counted:
        return self._free("times_i", a)

    def conjugate(self, a: Counted) -> Counted:
        return self._free("conjugate", a)

    def rotate(self, a: Counted, by: int) -> Counted:
        self._key(by)
        return self._free("rotate", a)

    def rotate_many(self, a: Counted, by: Sequence[int]) -> list[Counted]:
        self.counts["hoist"] += 1
        for k in by:
            self._key(k)
        self.counts["rotate_hoisted"] += len(by)
        return [a for _ in by]

    def add_rotations(self, a: Counted, by: Sequence[int]) -> Counted:
        for k in by:
            self._key(k)
        self.counts["rotate_summed"] += len(by) - 1
        return self._free("rotate", a)

    def multiply(self, a: Counted, b: Counted) -> Counted:
        self.counts["relinearise"] += 1
        return self._spend("multiply", a, b)

    def multiply_sum(self, pairs: Sequence[tuple[Counted, Counted]]) -> Counted:
        self.counts["relinearise"] += 1
        self.counts["multiply"] += len(pairs) - 1
        return self._spend("multiply", *(v for pair in pairs for v in pair))

    def multiply_plain(self, a: Counted, p: Plain) -> Counted:
        return self._spend("multiply_plain", a)

    def multiply_plain_sum(self, pairs: Sequence[tuple[Counted, Plain]]) -> Counted:
        self.counts["multiply_plain"] += len(pairs) - 1
        return self._spend("multiply_plain", *(v for v, _ in pairs))

    def linear(self, a: Counted, m: LinearMap) -> Counted:
        for k in m.rotations:
            self._key(k)
        moved = sum(1 for b in m.babies if b)
        self.counts["hoist"] += 1 if moved else 0
        self.counts["rotate_hoisted"] += moved
        self.counts["rotate"] += sum(1 for g in m.giants if g)
        self.counts["multiply_plain"] += m.plaintexts - 1
        return self._spend("multiply_plain", a)

    def drop(self, a: Counted, level: int) -> Counted:
        if not 0 <= level <= a.level:
            raise OutOfLevelsError(f"a value at level {a.level} cannot be dropped to level {level}")
        return Counted(level)

    def bootstrap(self, a: Counted, *, period: int, bound: float) -> Counted:
        self.counts["bootstrap"] += 1
        return Counted(self._params.levels)

    def bootstrap_pair(self, a: Counted, b: Counted, *, period: int, bound: float) -> tuple[Counted, Counted]:
        self.counts["bootstrap_pair"] += 1
        fresh = Counted(self._params.levels - self._params.pair_levels)
        return fresh, fresh

    def dump(self, a: Counted) -> bytes:
        raise EngineError("the counting engine holds no values to send")

    def parse(self, blob: bytes) -> Counted:
        raise EngineError("the counting engine holds no values to receive")

    @property
    def records(self) -> bool:
        """Nothing is recorded."""
        return False

    def replay(
        self, name: Hashable, body: Callable[[Sequence[Counted]], Sequence[Counted]], values: Sequence[Counted]
    ) -> Sequence[Counted]:
        return body(values)

    def synchronize(self) -> None:
        """Nothing is ever under way."""

    def _free(self, word: str, *values: Counted) -> Counted:
        if len({v.level for v in values}) != 1:
            raise EngineError(f"{word} of operands at levels {sorted(v.level for v in values)}")
        self.counts[word] += 1
        return values[0]

    def _spend(self, word: str, *values: Counted) -> Counted:
        level = self._free(word, *values).level
        if level < 1:
            raise OutOfLevelsError(f"{word} needs 1 level, has {level}")
        return Counted(level - 1)

    def _key(self, by: int) -> None:
        by %= self._params.slots
        self.used.add(by)
        if self.request is not None and by and by not in self.request.rotations:
            raise MissingKeyError(f"rotation by {by} is not among the plan's keys")
