# SPDX-License-Identifier: Apache-2.0
"""Cost tables: seconds of every instruction by level and of a bootstrap by period, and where they come from."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

from heatfhe.errors import ConfigError, PlanError
from heatfhe.files import read_record, write_json

KIND, VERSIONS = "cost-table", (1, 2)
SHIPPED = Path(__file__).parent / "costs"
MAX_SLOTS, MAX_PRICE = 1 << 20, 1e12

INSTRUCTIONS: dict[str, str] = {
    "add": "sum, difference, negation or small integer multiple of ciphertexts, or a sum with a plaintext",
    "conjugate": "complex conjugation, one key switch",
    "hoist": "digit decomposition shared by several rotations of one ciphertext",
    "multiply": "ciphertext product, relinearised and rescaled",
    "multiply_plain": "product with an encoded plaintext, not rescaled",
    "relinearise": "key switch of a sum of products",
    "rescale": "division by one level's prime",
    "rotate": "one rotation with its own decomposition",
    "rotate_hoisted": "one rotation of a decomposed ciphertext",
    "tensor": "ciphertext product, neither relinearised nor rescaled",
}
"""What a node's work may count, and what each word means."""

IN_MAPS = "linear."
"""Before a word: the same inside a linear map, where engines share decompositions, divisions and sums."""

SINCE_2: dict[str, str] = {
    "drop": "a value brought to a lower level: a division, priced by the level it comes from",
    "linear.add": "a sum inside a linear map: nothing, where it is part of the product",
    "linear.hoist": "the decomposition of a linear map's input, and what every map costs besides",
    "linear.multiply_plain": "one diagonal of a linear map",
    "linear.rescale": "the last division of a linear map",
    "linear.rotate": "one giant step of a linear map",
    "linear.rotate_hoisted": "one baby step of a linear map",
}
"""Words that tables of version 2 price; in those of version 1 drops cost nothing, and a map what its parts would."""

OPTIONAL: dict[str, str] = {
    "rotate_summed": "one rotation more in a sum of a value's rotations: a product with a key, no division",
}
"""Words that were not measured from the start. Without them ``INSTEAD`` says what is as much work."""

INSTEAD = {"rotate_summed": ("linear.rotate_hoisted", "rotate_hoisted")}
"""A baby step of a map is a product with a key and no division, too; where maps have no prices, a hoisted rotation."""


def plain_words(work: Mapping[str, int]) -> dict[str, int]:
    """Work by what is done, inside linear maps or not."""
    out: dict[str, int] = {}
    for word, times in work.items():
        word = word.removeprefix(IN_MAPS)
        out[word] = out.get(word, 0) + times
    return out


@dataclass(frozen=True, slots=True, kw_only=True)
class CostTable:
    """Predicted seconds, as measured or quoted for one engine on one machine.

    ``seconds[instruction][level]`` is the price with that many levels left; beyond the last entry the last one holds,
    so a table of one entry is flat. Prices never fall as the level rises: placements drop values as low as they can.
    ``bootstrap[period]`` prices a refresh of a value with that many distinct slots, ``pairs[period]`` one of two real
    values at once; ``slots`` is the full count of the machine's ring. ``unit`` names what one price unit is.

    Version 2 has prices of pairs and of drops. Without them (version 1) a drop costs nothing and a pair as much as one
    refresh, to which placements add the work of taking it apart. It may say what a word costs in a step that an engine
    starts by itself, because it depends on the position and is in no recording (``started``); without that, the same.
    """

    name: str
    provenance: str
    hardware: str
    slots: int
    bootstrap: Mapping[int, float]
    seconds: Mapping[str, tuple[float, ...]]
    unit: str = "s"
    pairs: Mapping[int, float] = field(default_factory=dict)
    started: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for word in ("name", "provenance", "hardware"):
            if not getattr(self, word).strip():
                raise ConfigError(f"cost table {self.name!r}: says no {word}; a price without a source is not used")
        if self.slots > MAX_SLOTS:
            raise ConfigError(f"cost table {self.name}: {self.slots} slots are more than any ring has ({MAX_SLOTS})")
        if self.slots not in self.bootstrap:
            raise ConfigError(f"cost table {self.name}: has no price for a bootstrap of all {self.slots} slots")
        if any(p < 1 or p & (p - 1) or p > self.slots for p in self.bootstrap):
            raise ConfigError(f"cost table {self.name}: bootstrap periods must be powers of two up to {self.slots}")
        rows = [*self.seconds.items(), *self.started.items()]
        prices = [*self.bootstrap.values(), *self.pairs.values(), *(s for _, row in rows for s in row)]
        if not all(0 <= s <= MAX_PRICE for s in prices):
            raise ConfigError(f"cost table {self.name}: prices must be finite and not negative")
        for by_period in (self.bootstrap, self.pairs):
            if (wide := [by_period[p] for p in sorted(by_period)]) != sorted(wide):
                raise ConfigError(f"cost table {self.name}: a bootstrap of more distinct slots must not be cheaper")
        if bool(self.pairs) != ("drop" in self.seconds) or (self.pairs and self.pairs.keys() != self.bootstrap.keys()):
            raise ConfigError(f"cost table {self.name}: prices both drops and pairs of every period, or neither")
        if any(self.pairs[p] < self.bootstrap[p] for p in self.pairs):
            raise ConfigError(f"cost table {self.name}: a pair must not be cheaper than one refresh of its period")
        if self.started and not (self.pairs and self.started.keys() <= self.seconds.keys()):
            raise ConfigError(
                f"cost table {self.name}: prices of started steps need version 2 and a price in recordings"
            )
        for word, row in rows:
            if word not in {*INSTRUCTIONS, *SINCE_2, *OPTIONAL}:
                known = ", ".join((*INSTRUCTIONS, *SINCE_2, *OPTIONAL))
                raise ConfigError(f"cost table {self.name}: unknown instruction {word!r}; have: {known}")
            if not row or list(row) != sorted(row):
                raise ConfigError(
                    f"cost table {self.name}: {word} needs at least one price, never falling as the level rises; "
                    "make the table with CostTable.measured, which takes the running maximum"
                )

    @classmethod
    def measured(
        cls,
        *,
        name: str,
        provenance: str,
        hardware: str,
        slots: int,
        bootstrap: Mapping[int, float],
        seconds: Mapping[str, tuple[float, ...]],
        pairs: Mapping[int, float] | None = None,
        started: Mapping[str, tuple[float, ...]] | None = None,
    ) -> CostTable:
        """A table from raw timings: noise that makes a higher level, a wider period, a pair or a step that is started
        by itself look cheaper is raised away."""
        periods = sorted(bootstrap)
        wide = dict(zip(periods, accumulate((bootstrap[p] for p in periods), max)))
        both = accumulate((max(pairs[p], wide[p]) for p in periods), max) if pairs else ()
        return cls(
            name=name,
            provenance=provenance,
            hardware=hardware,
            slots=slots,
            bootstrap=wide,
            seconds={word: tuple(accumulate(row, max)) for word, row in seconds.items()},
            pairs=dict(zip(periods, both)),
            started={
                word: tuple(accumulate(map(max, row, seconds[word]), max)) for word, row in (started or {}).items()
            },
        )

    @property
    def version(self) -> int:
        """Of the file format: 2 with prices of pairs and drops."""
        return 2 if self.pairs else 1

    @property
    def sums_rotations(self) -> bool:
        """Whether it knows what a rotation costs that shares its decomposition and its division with others."""
        return any(word in self.seconds for word in ("rotate_summed", INSTEAD["rotate_summed"][0]))

    def price(self, work: Mapping[str, int], level: int, *, started: bool = False) -> float:
        """Seconds of a node's work when it runs with this many levels left, in a recording or started by itself."""
        total = 0.0
        for word, count in (work if "linear.rotate" in self.seconds else plain_words(work)).items():
            if word not in self.seconds:
                word = next((other for other in INSTEAD.get(word, ()) if other in self.seconds), word)
            row = self.seconds.get(word, (0.0,) if word in SINCE_2 else None)
            row = self.started.get(word, row) if started else row
            if row is None:
                raise PlanError(
                    f"cost table {self.name} ({self.hardware}) has no price for {word!r}, of which {count} are needed; "
                    f"measure it with heat bench-engine and add it under seconds.{word}, or choose another table"
                )
            total += count * row[min(level, len(row) - 1)]
        return total

    def refresh(self, period: int, slots: int, *, pair: bool = False) -> float:
        """Seconds of one bootstrap of a value, or of a pair of values, with this period on a ring of this many slots.

        Between two tabulated periods the price is linear in log2(period). A value that fills its ring pays the full
        price, whatever the ring.
        """
        prices = self.pairs if pair and self.pairs else self.bootstrap
        if period >= slots:
            return prices[self.slots]
        known = sorted(p for p in prices if p < self.slots) or [self.slots]
        if period <= known[0] or period >= known[-1]:
            return prices[known[0] if period <= known[0] else known[-1]]
        above = next(p for p in known if p >= period)
        below = max(p for p in known if p <= period)
        if above == below:
            return prices[period]
        t = (math.log2(period) - math.log2(below)) / (math.log2(above) - math.log2(below))
        return (1 - t) * prices[below] + t * prices[above]

    def as_json(self) -> dict[str, Any]:
        """Plain JSON form."""
        return {
            "name": self.name,
            "provenance": self.provenance,
            "hardware": self.hardware,
            "slots": self.slots,
            "unit": self.unit,
            "bootstrap": {str(p): self.bootstrap[p] for p in sorted(self.bootstrap)},
            "seconds": {word: list(self.seconds[word]) for word in sorted(self.seconds)},
            **({"pairs": {str(p): self.pairs[p] for p in sorted(self.pairs)}} if self.pairs else {}),
            **({"started": {word: list(self.started[word]) for word in sorted(self.started)}} if self.started else {}),
        }

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> CostTable:
        """Inverse of as_json; checks everything again."""
        try:
            return cls(
                **{
                    **body,
                    "bootstrap": {int(p): float(s) for p, s in body["bootstrap"].items()},
                    "pairs": {int(p): float(s) for p, s in body.get("pairs", {}).items()},
                    **{
                        part: {word: tuple(float(s) for s in row) for word, row in body.get(part, {}).items()}
                        for part in ("seconds", "started")
                    },
                }
            )
        except (TypeError, KeyError, AttributeError, ValueError) as err:
            raise ConfigError(f"not a cost table: {err}") from err

    def save(self, path: Path) -> None:
        """Write the table as a versioned JSON file."""
        write_json(path, KIND, self.version, self.as_json())

    @classmethod
    def load(cls, path: Path) -> CostTable:
        """Read a table written by save; refuses altered or foreign files."""
        return read_record(path, KIND, VERSIONS, cls.from_json, remedy="measure the table again")


def cost_tables() -> tuple[str, ...]:
    """Names of the tables shipped with the package."""
    return tuple(sorted(path.stem for path in SHIPPED.glob("*.json")))


def cost_table(name: str | Path) -> CostTable:
    """A shipped table by its name, or a user's own by the path of its file (which ends in .json)."""
    if str(name).endswith(".json"):
        return CostTable.load(Path(name))
    if name not in cost_tables():
        known = ", ".join(cost_tables())
        raise ConfigError(f"unknown cost table {str(name)!r}; have: {known}, or the path of a .json file")
    return CostTable.load(SHIPPED / f"{name}.json")
