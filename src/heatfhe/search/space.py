# SPDX-License-Identifier: Apache-2.0
"""What may be searched: the counts of a calibrated circuit, their bounds, and the levels that each iteration spends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from heatfhe.circuit import Circuit
from heatfhe.errors import ConfigError
from heatfhe.records import FAMILIES, FamilyName
from heatfhe.stages import sites

Counts = NDArray[np.int64]  # (candidates, sites of a space)

# Least and largest count that ATLAS tries of each family (the paper, ATLAS replication).
BOUNDS: dict[FamilyName, tuple[int, int]] = {
    "norm_goldschmidt": (1, 13),
    "norm_newton": (0, 3),
    "softmax_init": (2, 9),
    "softmax_refine": (1, 12),
}


@dataclass(frozen=True, kw_only=True)
class Space:
    """The sites whose counts are searched, in the circuit's order; a candidate is a row of counts, one a site.

    An upper end is the calibrated count where that is more. A softmax without passes has nothing to refine: its count
    stays. ``levels`` is what one more iteration spends, over all passes.
    """

    names: tuple[str, ...]
    families: tuple[FamilyName, ...]
    layers: tuple[int, ...]
    lower: tuple[int, ...]
    upper: tuple[int, ...]
    levels: tuple[int, ...]
    passes: tuple[int, ...]
    calibrated: tuple[int, ...]

    @classmethod
    def of(cls, circuit: Circuit) -> Space:
        """The space of a circuit."""
        calibration = circuit.calibration
        counts = calibration.counts()
        found = []
        for site in sites(circuit.stages):
            passes = 1
            if site.family == "softmax_refine":
                passes = calibration.softmaxes[site.name.rpartition("/")[0]].fit.passes
            if passes:
                found.append((site, passes))
        if not found:
            raise ConfigError(f"circuit {circuit.name} has no solver whose count could be searched")
        return cls(
            names=tuple(site.name for site, _ in found),
            families=tuple(site.family for site, _ in found),
            layers=tuple(site.layer for site, _ in found),
            lower=tuple(BOUNDS[site.family][0] for site, _ in found),
            upper=tuple(max(BOUNDS[site.family][1], counts[site.name]) for site, _ in found),
            levels=tuple(FAMILIES[site.family].levels * passes for site, passes in found),
            passes=tuple(passes for _, passes in found),
            calibrated=tuple(counts[site.name] for site, _ in found),
        )

    @cached_property
    def kinds(self) -> tuple[FamilyName, ...]:
        """The families that occur: what a configuration shared by all layers chooses a count for."""
        return tuple(name for name in BOUNDS if name in self.families)

    def shared_bounds(self) -> tuple[Counts, Counts]:
        """Least and largest count of each kind, for a configuration shared by all layers."""
        where = [self._of(kind) for kind in self.kinds]
        lower, upper = np.array(self.lower), np.array(self.upper)
        return np.array([lower[w].min() for w in where]), np.array([upper[w].max() for w in where])

    def spread(self, shared: Counts) -> Counts:
        """Configurations (n, kinds) shared by all layers as candidates (n, sites), each within its site's bounds."""
        columns = [self.kinds.index(family) for family in self.families]
        return np.asarray(np.clip(shared[:, columns], self.lower, self.upper))

    def start(self) -> Counts:
        """The calibrated counts as a candidate (1, sites), raised to a lower end where they lie below it."""
        return np.clip(np.array([self.calibrated]), self.lower, self.upper)

    def spent(self, counts: Counts) -> NDArray[np.int64]:
        """Solver levels of candidates (n, sites): the first objective."""
        return np.asarray(counts @ np.array(self.levels))

    def iterations(self, counts: Counts) -> NDArray[np.int64]:
        """Iterations per forward of candidates (n, sites)."""
        return np.asarray(counts @ np.array(self.passes))

    def named(self, candidate: Sequence[int]) -> dict[str, int]:
        """A candidate's counts by site."""
        return {name: int(count) for name, count in zip(self.names, candidate)}

    def ways_down(self) -> list[Counts]:
        """Candidates from the calibrated counts to the least ones, in order: one family capped, or all sites cut alike.

        What a bound on the error is measured with before anything is searched.
        """
        start, lower = self.start()[0], np.array(self.lower)
        found = []
        for kind in self.kinds:
            where = self._of(kind)
            caps = range(int(start[where].max()), int(lower[where].min()) - 1, -1)
            found.append(np.array([np.where(where, np.minimum(start, cap), start) for cap in caps]))
        found.append(np.array([start - cut for cut in range(int((start - lower).max()) + 1)]))
        return [np.maximum(way, lower) for way in found]

    def between(self, first: Counts, last: Counts) -> Counts:
        """The candidates on the way from one (sites,) to another, one site after the other, without both ends."""
        sites = np.arange(len(first))
        rows = [np.where(sites <= at, last, first) for at in np.flatnonzero(first != last)[:-1]]
        return np.array(rows, dtype=np.int64).reshape(-1, len(sites))

    def _of(self, kind: FamilyName) -> NDArray[np.bool_]:
        return np.array([family == kind for family in self.families])
