# SPDX-License-Identifier: Apache-2.0
"""NSGA-II over integers, by pymoo: ask for candidates, tell what they are worth. The one module that imports pymoo."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from heatfhe.errors import MissingExtraError

try:
    from pymoo.algorithms.moo.nsga2 import NSGA2
    from pymoo.core.evaluator import Evaluator
    from pymoo.core.problem import Problem
    from pymoo.operators.crossover.sbx import SBX
    from pymoo.operators.mutation.pm import PM
    from pymoo.operators.repair.rounding import RoundingRepair
    from pymoo.problems.static import StaticProblem
except ModuleNotFoundError as err:
    if (err.name or "").startswith("heatfhe"):
        raise
    raise MissingExtraError("search", needed_by=f"the search for counts (no module {err.name})") from err

Counts = NDArray[np.int64]
ETA = 3.0  # of crossover and mutation: what pymoo's documentation gives for integers


@dataclass(frozen=True, slots=True, kw_only=True)
class Worth:
    """What candidates are worth: two objectives (n, 2), and by how much each exceeds the bound (n,), if above 0."""

    objectives: NDArray[np.float64]
    excess: NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Population:
    """The candidates that a stage ends with, and what they are worth."""

    counts: Counts
    worth: Worth

    def front(self) -> NDArray[np.int64]:
        """Which of them are feasible and dominated by none; of equal ones the first."""
        return front(self.worth)


def front(worth: Worth) -> NDArray[np.int64]:
    """Which candidates are feasible and dominated by none, by rising first objective; of equal ones the first."""
    feasible = np.flatnonzero(worth.excess <= 0.0)
    order = feasible[np.lexsort((feasible, worth.objectives[feasible, 1], worth.objectives[feasible, 0]))]
    kept, least = [], np.inf
    for i in order:
        if worth.objectives[i, 1] < least:
            kept.append(i)
            least = worth.objectives[i, 1]
    return np.array(kept, dtype=np.int64)


def evolve(
    lower: Counts,
    upper: Counts,
    evaluate: Callable[[int, Counts], Worth],
    *,
    population: int,
    generations: int,
    seed: int,
    first: Counts | None = None,
) -> Population:
    """NSGA-II from ``first`` (a whole population), or from a random one, through generations of as many children.

    ``evaluate(generation, candidates)`` is called once for the initial population (generation 0) and once for every
    generation after it. The same arguments give the same calls: replaying recorded answers is how a search goes on.
    """
    problem = Problem(n_var=len(lower), n_obj=2, n_ieq_constr=1, xl=lower, xu=upper, vtype=int)
    algorithm = NSGA2(
        pop_size=population,
        sampling=_random(lower, upper, population, seed) if first is None else np.asarray(first, dtype=np.int64),
        crossover=SBX(prob=1.0, eta=ETA, vtype=float, repair=RoundingRepair()),
        mutation=PM(prob=1.0, eta=ETA, vtype=float, repair=RoundingRepair()),
        eliminate_duplicates=True,
    )
    algorithm.setup(problem, termination=("n_gen", generations + 1), seed=seed, verbose=False)
    generation = 0
    while algorithm.has_next():
        asked = algorithm.ask()
        if asked is None or len(asked) == 0:  # no child that is not there already
            break
        worth = evaluate(generation, np.asarray(asked.get("X"), dtype=np.int64))
        answers = StaticProblem(problem, F=worth.objectives, G=worth.excess[:, None])
        Evaluator().eval(answers, asked)
        algorithm.tell(infills=asked)
        generation += 1
    ended = algorithm.pop
    return Population(
        counts=np.asarray(ended.get("X"), dtype=np.int64),
        worth=Worth(objectives=np.asarray(ended.get("F"), dtype=np.float64), excess=np.asarray(ended.get("G"))[:, 0]),
    )


def _random(lower: Counts, upper: Counts, size: int, seed: int) -> Counts:
    """So many different candidates, or all where there are fewer."""
    rng = np.random.default_rng([seed, 1])
    most = int(min(size, np.prod((upper - lower + 1).astype(float))))
    found: dict[tuple[int, ...], None] = {}
    while len(found) < most:
        found[tuple(rng.integers(lower, upper + 1).tolist())] = None
    return np.array(list(found), dtype=np.int64)
