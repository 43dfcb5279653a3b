# SPDX-License-Identifier: Apache-2.0
"""Which rows heat compare has: what each is made of, and after which others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from heatfhe.errors import ConfigError

if TYPE_CHECKING:
    from heatfhe.training import Recipe

TOLERANCES = (1e-1, 1e-2, 1e-3, 1e-4)
RULES = ("per-site", "joint")
TRANSPLANT = "transplant"
SEARCHED = {"atlas": False, "atlas-noisy": True}  # presets whose counts are searched, and whether under noise
MEASURING, SEARCHING = 1 << 17, 1 << 21  # costs beside those of training: about 30 s, and about those of a training


def folder_of(row: str) -> str:
    """A row's place in the run folder, by its name."""
    return row.replace(" ", "-")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One row. ``kind`` says how its circuit comes about, by a method of Comparison (``comparison.MAKERS``):

    ``plaintext``   the parent itself, without a circuit.
    ``calibrated``  the parent at ``tolerance``, by ``rule``.
    ``trained``     a ``recipe``; hand-cut ones have the total of the row ``after``.
    ``transplant``  the counts of the first row ``after`` in the circuit of the second.
    ``searched``    the counts of the row ``after`` searched with ``seed``, under noise where ``noisy``.

    ``after`` names the rows that must be there first.
    """

    name: str
    solver: str
    kind: str = "trained"
    tolerance: float = 0.0
    rule: str = "per-site"
    recipe: Recipe | None = None
    after: tuple[str, ...] = ()
    seed: int = 0
    noisy: bool = False

    @property
    def folder(self) -> str:
        """Its place in the run folder."""
        return folder_of(self.name)

    @property
    def cost(self) -> int:
        """Tokens seen in training, soft ones twice, and what measuring costs: the longest job is started first."""
        if self.recipe is None:
            return SEARCHING if self.kind == "searched" else MEASURING
        phases = self.recipe.phases.values()
        trained = sum(p.updates * p.tokens_per_update * (2 if p.halting == "soft" else 1) for p in phases)
        return MEASURING + trained


def make_jobs(
    base: Callable[[str], Recipe], presets: Sequence[str], seeds: Sequence[int], rules: Sequence[str] = RULES
) -> list[Job]:
    """Every row in the table's order; a preset is ``NAME`` or ``NAME:SOLVER``. A wrong name fails here, not later.

    ``base`` gives the recipe for a solver. Hand-cut counts wait for the row of learned ones, unless the recipe itself
    says what they add up to. ``transplant`` makes two rows: the learned counts in the squeezed and in the calibrated
    parent's circuit. ``atlas`` and ``atlas-noisy`` search the counts of the calibrated one.
    """
    from heatfhe.training import ablation

    jobs, solvers = [], []
    for name, _, solver in (p.partition(":") for p in presets):
        solver = solver or "plain"
        solvers.append(solver)
        if name == TRANSPLANT:
            jobs += [job for seed in seeds for job in _transplants(solver, seed)]
            continue
        if name in SEARCHED:
            jobs += [_searched(name, solver, seed) for seed in seeds]
            continue
        for seed in seeds:
            made = replace(ablation(name, base(solver)), seed=seed)
            jobs.append(Job(name=f"{name} {solver} seed {seed}", solver=solver, recipe=made))
    known = {job.name for job in jobs}
    for i, job in enumerate(jobs):
        learned = job.name.replace("fixed-counts", "heat")
        if learned != job.name and learned in known and job.recipe is not None and not job.recipe.fixed_total:
            jobs[i] = replace(job, after=(learned,))
    if unknown := set(rules) - set(RULES):
        raise ConfigError(f"unknown rule {sorted(unknown)[0]!r}; have: {', '.join(RULES)}")
    calibrated = [
        Job(name=_calibrated(t, s, r), solver=s, kind="calibrated", tolerance=t, rule=r)
        for s in dict.fromkeys(solvers)
        for r in rules
        for t in TOLERANCES
    ]
    found = [Job(name="plaintext", solver="plain", kind="plaintext"), *calibrated, *jobs]
    names = {job.name for job in found}
    for job in found:
        if absent := [name for name in job.after if name not in names]:
            raise ConfigError(f"{job.name}: needs the row {absent[0]!r}; add it to --presets")
    return found


def _calibrated(tolerance: float, solver: str, rule: str = "per-site") -> str:
    return f"calibrated {tolerance:.0e} {solver}" + (f" {rule}" if rule != "per-site" else "")


def _transplants(solver: str, seed: int) -> list[Job]:
    """HEAT's counts where weights did not learn with them."""
    learned, end = f"heat {solver} seed {seed}", f"{solver} seed {seed}"
    parents = {"squeezed": f"squeezed {end}", "calibrated": _calibrated(TOLERANCES[-1], solver)}
    return [
        Job(name=f"{TRANSPLANT}-{where} {end}", solver=solver, kind=TRANSPLANT, after=(learned, parent))
        for where, parent in parents.items()
    ]


def _searched(name: str, solver: str, seed: int) -> Job:
    """The calibrated parent's circuit at counts that a search finds."""
    return Job(
        name=f"{name} {solver} seed {seed}", solver=solver, kind="searched", seed=seed, noisy=SEARCHED[name],
        after=(_calibrated(TOLERANCES[-1], solver),),
    )  # fmt: skip
