# SPDX-License-Identifier: Apache-2.0
"""What one iteration at each site is worth in seconds of a token: a staircase, since levels are bought by bootstraps.

An iteration less saves a bootstrap, or a few products and nothing else, depending on everything around it. So the
whole token is planned with the counts as they are, and again with a site's count lowered. Training is given these
prices by its caller: it knows no plans.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing import get_context
from typing import Any, cast

from heatfhe.circuit import Circuit
from heatfhe.ckks import Params
from heatfhe.planning.carried import Model
from heatfhe.planning.cost import CostTable, cost_table
from heatfhe.planning.pack import Packing, PeriodicMlp
from heatfhe.planning.placement import place
from heatfhe.planning.plan import default_cost
from heatfhe.planning.program import ProgramName
from heatfhe.planning.programs import record
from heatfhe.planning.stairs import Bounds, Token, onto_stairs
from heatfhe.records import Calibration
from heatfhe.stages import Shape, Stage

AHEAD = 3  # iterations less that are looked at: a stair may be some away


@dataclass(kw_only=True)
class IterationPrices:
    """Seconds per iteration by site, under a calibration and its counts, of a token up to its logits.

    The price of an iteration is the most that lowering the site's count by one, two or three saves for each; where the
    count is at its floor, what one more would cost. ``context`` is the planned cache's. Plans are made by so many
    ``processes`` at a time, and remembered by their counts as long as nothing else of the calibration changes.
    """

    stages: Sequence[Stage]
    shape: Shape
    params: Params
    context: int
    cost: CostTable | None = None
    processes: int = 1
    _known: dict[tuple[int, ...], Token] = field(default_factory=dict, init=False, repr=False)
    _under: Calibration | None = field(default=None, init=False, repr=False)
    _mlp: str = field(default="A", init=False, repr=False)

    @property
    def table(self) -> CostTable:
        """The prices of instructions."""
        return self.cost or cost_table(default_cost(self.params))

    @property
    def name(self) -> str:
        """What they depend on beside the calibration."""
        return f"{self.params.name}, {self.table.name}, context {self.context}"

    def __call__(self, calibration: Calibration) -> Mapping[str, float]:
        counts, floors = calibration.counts(), calibration.floors()
        moves = {
            name: [-k for k in range(1, min(AHEAD, count - floors[name]) + 1)] or [1] for name, count in counts.items()
        }
        flat = [(name, by) for name, own in moves.items() for by in own]
        near = [{**counts, name: counts[name] + by} for name, by in flat]
        now, *other = self.tokens([counts, *near], calibration)
        prices = dict.fromkeys(counts, 0.0)
        for (name, by), token in zip(flat, other, strict=True):
            prices[name] = max(prices[name], (token.seconds - now.seconds) / by)
        return prices

    def on_stairs(self, calibration: Calibration, reach: int, bounds: Bounds) -> dict[str, int]:
        """The calibration's counts, each softmax's changed by at most ``reach``, where a token is cheapest at no fewer
        iterations in all (``stairs.onto_stairs``)."""
        return onto_stairs(calibration, lambda wanted: self.tokens(wanted, calibration), reach, bounds)

    def seconds(self, calibration: Calibration) -> float:
        """A token's predicted seconds at the calibration's counts."""
        return self.tokens([calibration.counts()], calibration)[0].seconds

    def bootstraps(self, calibration: Calibration) -> int:
        """A token's bootstraps at the calibration's counts."""
        return self.tokens([calibration.counts()], calibration)[0].bootstraps

    def tokens(self, wanted: Sequence[Mapping[str, int]], calibration: Calibration) -> list[Token]:
        """A token at each of these counts."""
        bare = calibration.with_counts(calibration.floors())
        if self._under != bare:
            self._known.clear()
            self._under, self._mlp = bare, self._variant(calibration)
        keys = [tuple(counts.values()) for counts in wanted]
        missing = {k: calibration.with_counts(c) for k, c in zip(keys, wanted) if k not in self._known}
        plan_one = partial(_planned, replace(self, processes=1), self._mlp)
        if self.processes > 1 and len(missing) > self.processes:
            with ProcessPoolExecutor(self.processes, mp_context=get_context("spawn")) as pool:
                made = list(pool.map(plan_one, missing.values(), chunksize=4))
        else:
            made = [plan_one(one) for one in missing.values()]
        self._known.update(zip(missing, made, strict=True))
        return [self._known[k] for k in keys]

    def _variant(self, calibration: Calibration) -> str:
        """The MLP's cheaper variant, chosen once."""
        variants = ["A", "B"] if PeriodicMlp(packing=self._packing, halve=self._halve).fits else ["A"]
        if len(variants) == 1:
            return variants[0]
        return min(variants, key=lambda mlp: _planned(self, mlp, calibration).seconds)

    @property
    def _packing(self) -> Packing:
        return Packing(self.shape, self.params.slots, self.context)

    @property
    def _halve(self) -> bool:
        return bool(dict(self.params.literal).get("times_i_levels", 0) == 0)


def _planned(prices: IterationPrices, mlp: str, calibration: Calibration) -> Token:
    model = cast(Circuit, Model(prices.stages, prices.shape, calibration))  # a recording names weights and reads none
    options: dict[str, Any] = {"halve": prices._halve, "mlp": mlp, "reach": prices.params.reach}
    recording = record(model, prices._packing, ProgramName.LOGITS, **options)
    graph = recording.graph(levels=prices.params.levels, fixed={}, required={})
    placed = place(graph, prices.params, prices.table)
    return Token(seconds=placed.seconds, bootstraps=placed.bootstraps)
