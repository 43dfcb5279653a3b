# SPDX-License-Identifier: Apache-2.0
"""The records both sides share: families, sites, domains, and the calibration of a model. Frozen, numpy only."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from heatfhe.approx import ActivationFit, ArgmaxSchedule, InverseSqrtFit, ReciprocalFit, SoftmaxFit
from heatfhe.errors import ConfigError, SiteError
from heatfhe.files import plain, read_record, remade, write_json

FamilyName = Literal["norm_goldschmidt", "norm_newton", "softmax_init", "softmax_refine"]
KIND, VERSION = "heatfhe-calibration", 1
_PARTS = ("norms", "softmaxes", "activations")
MOST_COUNT = 64  # iterations of one solver: enough for any domain a double can hold

DIVERGED_FACTOR = 10.0  # a logit this much larger than the largest of calibration has diverged
LARGEST_NUMBER = 3e38  # what float32 still holds
FAINT_LEADER = 0.5  # a near one-hot row whose largest entry is below this feeds back a weak copy of its word


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One kind of solver. Floors and largest counts are the paper's; ``levels`` is what one iteration spends."""

    name: FamilyName
    floor: int
    max_count: int
    levels: int
    suffix: str


FAMILIES: dict[str, Family] = {
    f.name: f
    for f in (
        Family(name="norm_goldschmidt", floor=1, max_count=13, levels=1, suffix="goldschmidt"),
        Family(name="norm_newton", floor=0, max_count=3, levels=2, suffix="newton"),
        Family(name="softmax_init", floor=1, max_count=9, levels=1, suffix="init"),
        Family(name="softmax_refine", floor=1, max_count=12, levels=1, suffix="refine"),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """One place in a model where one solver iterates, e.g. ``h.3.ln_2/newton``. Knows nothing of torch.

    ``layer`` is the block's index; the final norm has the index one past the last block.
    """

    name: str
    family: FamilyName
    layer: int
    floor: int
    max_count: int

    def __post_init__(self) -> None:
        if self.family not in FAMILIES:
            raise ConfigError(f"{self.name}: unknown family {self.family!r}; have {', '.join(FAMILIES)}")
        if not 0 <= self.floor <= self.max_count <= 2 * MOST_COUNT:
            raise ConfigError(
                f"{self.name}: needs 0 <= floor <= max_count <= {2 * MOST_COUNT}, got {self.floor} and {self.max_count}"
            )

    def checked(self, count: int) -> int:
        """The count, if this site allows it."""
        if not self.floor <= count <= self.max_count:
            raise SiteError(
                self.name,
                f"count {count} lies outside [{self.floor}, {self.max_count}]; choose one inside, or raise max_count",
            )
        return count


@dataclass(frozen=True, slots=True, kw_only=True)
class Domain:
    """Closed interval of reals: ``observed`` on data, ``guarded`` by a clamp, or ``assumed``."""

    lo: float
    hi: float
    how: Literal["observed", "guarded", "assumed"] = "observed"

    def __post_init__(self) -> None:
        if not (math.isfinite(self.lo) and math.isfinite(self.hi) and self.lo < self.hi):
            raise ConfigError(f"domain needs finite lo < hi, got [{self.lo:g}, {self.hi:g}]")


@dataclass(frozen=True, slots=True, kw_only=True)
class NormCalibration:
    """One norm: z = sum x^2 + width * eps goes through ``fit``, the result is sqrt(width) / sqrt(z)."""

    name: str
    width: int
    eps: float
    fit: InverseSqrtFit
    goldschmidt_count: int
    newton_count: int
    observed: Domain

    def __post_init__(self) -> None:
        _check_counts(self.name, self.goldschmidt_count, self.newton_count)
        if self.width < 1 or not 0.0 <= self.eps < math.inf:
            raise ConfigError(
                f"{self.name}: needs a width of at least 1 and a finite eps, got {self.width}, {self.eps:g}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftmaxCalibration:
    """One attention softmax: scores' domain and (delta_1, delta_2) in ``fit``; counts per solver (refine: per pass)."""

    name: str
    fit: SoftmaxFit
    init_count: int
    refine_count: int
    observed: Domain
    observed_init: Domain
    observed_refine: Domain | None = None

    def __post_init__(self) -> None:
        _check_counts(self.name, self.init_count, self.refine_count)

    def met(self, number: int) -> tuple[ReciprocalFit, float]:
        """The first reciprocal (0) or that of a pass (1, ...), and the least it meets: its domain's end, or what was
        seen below it, where it falls short but grows."""
        if number == 0 or self.fit.refine is None:
            return self.fit.init, min(self.fit.init.lo, self.observed_init.lo)
        fit, seen = self.fit.refine, self.observed_refine
        return fit, fit.lo if seen is None else min(fit.lo, seen.lo)


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationCalibration:
    """One activation: its input's observed range and the polynomial fitted on [-bound, bound]."""

    name: str
    fit: ActivationFit
    observed: Domain


@dataclass(frozen=True, slots=True, kw_only=True)
class ArgmaxCalibration:
    """The argmax schedule, up to which temperature of sampling it was made, and how close to ties its rows came."""

    schedule: ArgmaxSchedule
    temperature: float = 0.0
    near_ties: float = 0.0
    smallest_leader: float = 0.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.temperature <= 100.0:
            raise ConfigError(f"argmax: a temperature lies in [0, 100], got {self.temperature:g}")

    def as_json(self) -> dict[str, Any]:
        """Plain JSON form; the seed of a round stands under the name of its kind."""
        body = plain(self)
        if not self.schedule.settle:
            del body["schedule"]["settle"]
        for round_ in body["schedule"]["rounds"]:
            seed = round_.pop("seed")
            chord = "kind" in seed
            round_.update(chord=seed if chord else None, rational=None if chord else seed)
        return body

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> ArgmaxCalibration:
        """Inverse of as_json."""
        rounds = [dict(round_) for round_ in body["schedule"]["rounds"]]
        for round_ in rounds:
            chord, rational = round_.pop("chord"), round_.pop("rational")
            round_["seed"] = rational if chord is None else chord
        return remade(cls, {**body, "schedule": {**body["schedule"], "rounds": rounds}})


def diverged(logits: Any, largest: float) -> Any:
    """Positions (...) at which logits (..., V) have diverged: one is not finite, or beyond ten times the largest seen.

    A window diverges when any of its positions does: what comes after reads the same cache. The one definition, for
    numpy and torch.
    """
    limit = min(DIVERGED_FACTOR * largest, LARGEST_NUMBER)
    return ~(abs(logits) <= limit).all(-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """For every site its domain, fitted constants and count, for one set of weights (``fingerprint``).

    ``magnitudes`` are observed maxima of named values (``h.3.in``, ``h.3.attn/q`` ...), which planning turns into the
    bounds a refresh must respect. ``context`` is the longest row the domains cover, the ``prefix`` included: public
    tokens in front of every sequence, whose own positions the domains leave out.
    """

    fingerprint: str
    tolerance: float
    rule: str
    solver: str
    context: int
    sequences: int
    norms: Mapping[str, NormCalibration]
    softmaxes: Mapping[str, SoftmaxCalibration]
    activations: Mapping[str, ActivationCalibration]
    argmax: ArgmaxCalibration | None = None
    magnitudes: Mapping[str, float] = field(default_factory=dict)
    prefix: tuple[int, ...] = ()

    def __repr__(self) -> str:
        counts = ", ".join(f"{family} {count}" for family, count in self.iterations().items())
        return f"Calibration(iterations: {counts}; tolerance {self.tolerance:g}, context {self.context})"

    def domains(self) -> dict[str, tuple[float, float]]:
        """Where the input of every approximation may lie, by the name a tap sees it under.

        What goes into a root or a reciprocal may be anything above zero but too large; a row's sums are meant over its
        length.
        """
        found: dict[str, tuple[float, float]] = {}
        for norm in self.norms.values():
            found[f"{norm.name}/z"] = (0.0, norm.fit.hi)
        for row in self.softmaxes.values():
            second = row.fit.init if row.fit.refine is None else row.fit.refine
            found[f"{row.name}/scores"] = (row.fit.lo, row.fit.hi)
            found[f"{row.name}/sum"], found[f"{row.name}/sum2"] = (0.0, row.fit.init.hi), (0.0, second.hi)
        for unit in self.activations.values():
            found[f"{unit.name}/in"] = (-unit.fit.bound, unit.fit.bound)
        return found

    def diverged(self, logits: Any) -> Any:
        """Positions (...) whose logits (..., V), of numpy or torch, have diverged: see ``diverged``."""
        return diverged(logits, self.magnitudes.get("logits", math.inf))

    def counts(self) -> dict[str, int]:
        """Count by site name."""
        return {site: count for site, _, count, _ in self._solvers()}

    def floors(self) -> dict[str, int]:
        """Smallest count by site name."""
        return {site: FAMILIES[family].floor for site, family, _, _ in self._solvers()}

    def iterations(self) -> dict[str, int]:
        """Solver iterations per forward, by family; a refinement count is run once per pass."""
        total = dict.fromkeys(FAMILIES, 0)
        for _, family, count, passes in self._solvers():
            total[family] += count * passes
        return total

    def _solvers(self) -> Iterator[tuple[str, FamilyName, int, int]]:
        """Site, family, count and passes of every solver."""
        for norm in self.norms.values():
            yield f"{norm.name}/goldschmidt", "norm_goldschmidt", norm.goldschmidt_count, 1
            yield f"{norm.name}/newton", "norm_newton", norm.newton_count, 1
        for row in self.softmaxes.values():
            yield f"{row.name}/init", "softmax_init", row.init_count, 1
            yield f"{row.name}/refine", "softmax_refine", row.refine_count, row.fit.passes

    def with_counts(self, counts: Mapping[str, int]) -> Calibration:
        """The same calibration with other counts; every name must be a site of it."""
        unknown = set(counts) - set(self.counts())
        if unknown:
            raise ConfigError(f"no such site: {sorted(unknown)[0]}; sites look like {next(iter(self.counts()))}")
        if negative := [name for name, count in counts.items() if count < 0]:
            raise SiteError(negative[0], f"count {counts[negative[0]]} is negative")
        now = {**self.counts(), **counts}
        norms = {
            n: replace(c, goldschmidt_count=now[f"{n}/goldschmidt"], newton_count=now[f"{n}/newton"])
            for n, c in self.norms.items()
        }
        rows = {
            n: replace(c, init_count=now[f"{n}/init"], refine_count=now[f"{n}/refine"])
            for n, c in self.softmaxes.items()
        }
        return replace(self, norms=norms, softmaxes=rows)

    def save(self, path: Path) -> None:
        """Write as versioned JSON, atomically."""
        write_json(path, KIND, VERSION, self.as_json())

    @classmethod
    def load(cls, path: Path) -> Calibration:
        """Read what save wrote; refuses altered or foreign files."""
        return read_record(path, KIND, (VERSION,), cls.from_json, remedy="calibrate again")

    def as_json(self) -> dict[str, Any]:
        """Plain JSON form; each part is a list of what its mapping holds by name."""
        body = plain(self)
        if not self.prefix:
            del body["prefix"]
        return body | {part: list(body[part].values()) for part in _PARTS}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Calibration:
        """Inverse of as_json; every part checks itself again."""
        return remade(cls, {**body, **{part: {c["name"]: c for c in body[part]} for part in _PARTS}})


def make_site(owner: str, family: FamilyName, layer: int, max_count: int | None = None) -> Site:
    """The site of one family at a norm or attention of a layer."""
    f = FAMILIES[family]
    top = f.max_count if max_count is None else max(f.floor, max_count)
    return Site(name=f"{owner}/{f.suffix}", family=family, layer=layer, floor=f.floor, max_count=top)


def _check_counts(name: str, *counts: int) -> None:
    for count in counts:
        if not 0 <= count <= MOST_COUNT:
            raise SiteError(name, f"count {count} lies outside [0, {MOST_COUNT}]; calibrate again")
