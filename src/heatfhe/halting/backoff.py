# SPDX-License-Identifier: Apache-2.0
"""The adaptive depth target: a prior's mode is lowered once the learned mode has settled on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from heatfhe.errors import ConfigError
from heatfhe.records import Site


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One site's target count (absolute), how long the learned mode has held it, and when it last stepped down."""

    count: int
    held: int = 0
    lowered_at: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BackOff:
    """The targets of all sites. Immutable: ``observe`` returns the next state.

    ``patience`` is counted in micro-batches, ``gap`` in updates between two reductions of one site (the first needs
    none). A learned mode that has passed below its target counts as having reached it. Targets start at the top of each
    site's support and end at its floor, or at the site's ``least`` where that is more. While the learned modes add up
    to ``enough`` or less, nothing is pulled further down: every target lies at its mode or above, and none is lowered.
    """

    targets: Mapping[str, Target]
    floors: Mapping[str, int]
    least: Mapping[str, int] = field(default_factory=dict)
    patience: int = 75
    gap: int = 150
    enough: int = 0

    def __post_init__(self) -> None:
        if self.patience < 1 or self.gap < 0:
            raise ConfigError(f"back-off needs patience >= 1 and gap >= 0, got {self.patience} and {self.gap}")
        if self.enough < 0:
            raise ConfigError(f"enough is a number of iterations, 0 for none, got {self.enough}")
        if set(self.targets) != set(self.floors) or not set(self.least) <= set(self.floors):
            raise ConfigError("back-off needs a floor for every target, and no other")
        for name, target in self.targets.items():
            if not 0 <= self.floors[name] <= target.count or target.held < 0:
                raise ConfigError(f"{name}: a target of {target.count} lies below its floor {self.floors[name]}")

    @classmethod
    def start(
        cls,
        sites: Sequence[Site],
        *,
        patience: int = 75,
        gap: int = 150,
        least: Mapping[str, int] | None = None,
        enough: int = 0,
    ) -> BackOff:
        """Every target at the top of its site's support; ``least`` by family."""
        targets = {s.name: Target(count=s.max_count) for s in sites}
        floors = {s.name: s.floor for s in sites}
        ends = {s.name: least[s.family] for s in sites if least is not None and s.family in least}
        return cls(targets=targets, floors=floors, least=ends, patience=patience, gap=gap, enough=enough)

    def observe(self, modes: Mapping[str, int], update: int) -> BackOff:
        """The state after one micro-batch of the given update, in which the learned modes were these."""
        if sum(modes.values()) <= self.enough:
            kept = {name: replace(t, count=max(t.count, modes[name])) for name, t in self.targets.items()}
            return replace(self, targets=kept)
        return replace(
            self, targets={name: self._next(name, t, modes[name], update) for name, t in self.targets.items()}
        )

    def above_floor(self) -> list[int]:
        """Targets as the prior wants them: counted from each site's floor, in site order."""
        return [t.count - self.floors[name] for name, t in self.targets.items()]

    def _next(self, name: str, target: Target, mode: int, update: int) -> Target:
        held = target.held + 1 if mode <= target.count else 0
        rested = target.lowered_at is None or update - target.lowered_at >= self.gap
        if held >= self.patience and rested and target.count > max(self.floors[name], self.least.get(name, 0)):
            return Target(count=target.count - 1, held=0, lowered_at=update)
        return replace(target, held=held)

    def as_json(self) -> dict[str, Any]:
        """Plain JSON form, for checkpoints."""
        rows = [
            [name, t.count, t.held, t.lowered_at] for name, t in self.targets.items()
        ]  # a list: their order matters
        ends = {"floors": dict(self.floors), "least": dict(self.least)}
        return {"targets": rows, **ends, "patience": self.patience, "gap": self.gap, "enough": self.enough}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> BackOff:
        """Inverse of as_json."""
        targets = {n: Target(count=c, held=h, lowered_at=at) for n, c, h, at in body["targets"]}
        ends = {"floors": dict(body["floors"]), "least": dict(body.get("least", {}))}
        return cls(
            targets=targets,
            **ends,
            patience=body["patience"],
            gap=body["gap"],
            enough=body.get("enough", 0),
        )
