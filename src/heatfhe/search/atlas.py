# SPDX-License-Identifier: Apache-2.0
"""ATLAS: counts searched on frozen weights, first one configuration for all layers, then one of each layer's own.

Source  the paper, ATLAS replication: two stages of NSGA-II, objectives levels and error of the last block's hidden
        states; all ends of the second stage judged by perplexity, the cheapest within 2 % of the calibrated one kept.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heatfhe.circuit import Circuit
from heatfhe.errors import ConfigError, DataError
from heatfhe.files import existing, plain, write_json
from heatfhe.progress import SILENT, Reporter
from heatfhe.search.batched import Batched
from heatfhe.search.journal import Journal
from heatfhe.search.nsga import Population, Worth, evolve, front
from heatfhe.search.space import Counts, Space

KIND, VERSION = "heatfhe-front", 1
WORST = 1e9  # stands for an error that is not finite: pymoo sorts by numbers
JUDGED = 8  # candidates that one line of the journal judges
Price = Callable[[Counts], NDArray[np.float64]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSettings:
    """Every choice of a search; the defaults are the paper's.

    ``population, generations``  of both stages; every stage evaluates its initial population too: 24,144 candidates.
    ``seed``       of sampling, crossover and mutation.
    ``bound``      largest error of a feasible candidate; None for the least that admits every probe within ``within``
                   of the calibrated perplexity (the paper's 1.0 is that of GPT-2).
    ``within``     by how much a chosen circuit's perplexity may exceed the calibrated one.
    ``sigma``      standard deviation of noise at every site's input and output, while candidates run and are judged.
    ``objective``  what candidates are priced by beside their error: ``levels``, or a name for the price that is given.
    ``device, dtype``  where and how candidates are run; with ``tf32`` they are judged in float32 all the same.
    """

    population: tuple[int, int] = (48, 96)
    generations: tuple[int, int] = (50, 225)
    seed: int = 0
    bound: float | None = None
    within: float = 0.02
    sigma: float = 0.0
    objective: str = "levels"
    device: str = "cpu"
    dtype: str = "float32"

    def __post_init__(self) -> None:
        if len(self.population) != 2 or len(self.generations) != 2:
            raise ConfigError("a search has two stages: give a population and generations for each")
        if min(self.population) < 4 or min(self.generations) < 0:
            raise ConfigError(
                f"a population has at least 4 candidates and generations are not negative, got {self.population} and "
                f"{self.generations}"
            )
        if self.bound is not None and not 0.0 < self.bound < math.inf:
            raise ConfigError(
                f"a bound on the error is above 0 and finite, got {self.bound:g}; leave it out to measure"
            )
        if not (0.0 <= self.within < math.inf and 0.0 <= self.sigma < math.inf):
            raise ConfigError(f"within and sigma are at least 0 and finite, got {self.within:g} and {self.sigma:g}")
        if self.seed < 0:
            raise ConfigError(f"a seed is at least 0, got {self.seed}")

    @property
    def candidates(self) -> int:
        """How many candidates both stages evaluate."""
        return sum(size * (1 + turns) for size, turns in zip(self.population, self.generations))


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """One circuit that a search ended with (or began from): its counts by site and what they are worth.

    ``price`` is the first objective: levels, unless the search was told otherwise. ``front`` says that no other end is
    both cheaper and nearer to the model.
    """

    counts: dict[str, int]
    iterations: int
    levels: int
    price: float
    error: float
    perplexity: float
    front: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a search ended with. ``ends`` are those of the second stage, cheapest first, all judged by perplexity.

    ``chosen`` is the cheapest within the settings' share of the calibrated perplexity, or None where there is none.
    ``seconds`` were spent on computing, over all processes that worked on it.
    """

    settings: SearchSettings
    bound: float
    calibrated: End
    ends: tuple[End, ...]
    chosen: End | None
    candidates: int
    seconds: float = field(default=0.0, compare=False)

    def as_json(self) -> dict[str, Any]:
        """Plain JSON form; a number that does not exist is null."""
        return existing(plain(self))

    def applied(self, circuit: Circuit) -> Circuit:
        """The circuit that was searched at the counts that were chosen, with a card of the search among its notes."""
        if self.chosen is None:
            best = min(end.perplexity for end in self.ends)
            raise ConfigError(
                f"no end of the search comes within {100 * self.settings.within:g} % of the calibrated perplexity "
                f"{self.calibrated.perplexity:.4g}: the best has {best:.4g}; search longer (--generations), or lower "
                f"--bound below {self.bound:.3g}"
            )
        kept = ("iterations", "levels", "price", "error", "perplexity")
        card = {
            "settings": plain(self.settings),
            "bound": self.bound,
            "candidates": self.candidates,
            "calibrated": plain(self.calibrated, kept),
            "chosen": plain(self.chosen, kept),
        }
        named = replace(circuit, name=f"{circuit.name}-atlas", notes={**circuit.notes, "search": existing(card)})
        return named.with_counts(self.chosen.counts)


def search(
    circuit: Circuit,
    tokens: NDArray[np.int64],
    judged: NDArray[np.int64],
    settings: SearchSettings | None = None,
    *,
    folder: str | Path | None = None,
    price: Price | None = None,
    reporter: Reporter = SILENT,
) -> Found:
    """Search the counts of a calibrated circuit; with a ``folder``, go on where an earlier call of the same was killed.

    Errors are measured on windows ``tokens`` (B, T), perplexities on ``judged`` (W, P + 1), which should be other text.
    ``price`` gives the first objective of candidates, by default their solver levels. The folder ends with
    ``front.json``; ``Found.applied`` makes the circuit that was chosen.

    >>> found = search(Circuit.load("out/calibrated"), tokens, judged, folder="out/atlas")      # doctest: +SKIP
    >>> found.chosen.iterations                                                                # doctest: +SKIP
    """
    settings = settings or SearchSettings()
    _check_windows(circuit, tokens, judged)
    work = _Work(circuit, tokens, judged, settings, None if folder is None else Path(folder), price, reporter)
    found = work.found()
    if folder is not None:
        write_json(Path(folder) / "front.json", KIND, VERSION, found.as_json())
    return found


class _Work:
    """One search: what its stages share."""

    def __init__(
        self,
        circuit: Circuit,
        tokens: NDArray[np.int64],
        judged: NDArray[np.int64],
        settings: SearchSettings,
        folder: Path | None,
        price: Price | None,
        reporter: Reporter,
    ) -> None:
        self.settings, self.reporter, self.space = settings, reporter, Space.of(circuit)
        texts = [hashlib.sha256(np.ascontiguousarray(rows, dtype=np.int64).tobytes()) for rows in (tokens, judged)]
        identity = {
            "circuit": circuit.digest,
            **dict(zip(("text", "judged text"), (text.hexdigest() for text in texts))),
            **plain(settings),
        }
        self.journal = Journal(folder, identity)
        same: dict[str, Any] = {"device": settings.device, "sigma": settings.sigma}
        self._errors = Batched(circuit, tokens, self.space.names, dtype=settings.dtype, **same)
        precise = "float32" if settings.dtype == "tf32" else settings.dtype
        self._judge = Batched(circuit, judged[:, :-1], self.space.names, dtype=precise, **same)
        self._targets = judged[:, 1:]
        self._given = price
        self._reference: Any = None
        self._known: dict[tuple[int, ...], float] = {}
        self._stage = "shared"
        self.count = 0

    def found(self) -> Found:
        """Bound, both stages, judgement."""
        start = self.space.start()
        own, nats = self.errors("calibrated", start), self.nats("calibrated perplexity", start)
        if not math.isfinite(nats[0]):
            raise ConfigError(
                "the calibrated circuit diverges on the text that judges; calibrate it on text like that, or give other"
            )
        bound = self._bound(float(own[0]), float(nats[0]))
        ended = self._stages(bound)
        return self._judged(ended, bound, float(own[0]), float(nats[0]))

    def _stages(self, bound: float) -> Population:
        settings = self.settings
        self.reporter.start("search", sum(settings.generations) + 2)
        lower, upper = self.space.shared_bounds()
        first = evolve(
            lower, upper, partial(self._worth, bound, self.space.spread), population=settings.population[0],
            generations=settings.generations[0], seed=settings.seed,
        )  # fmt: skip
        self._stage = "layers"
        ended = evolve(
            np.array(self.space.lower), np.array(self.space.upper), partial(self._worth, bound, None),
            population=settings.population[1], generations=settings.generations[1], seed=settings.seed + 1,
            first=self._seeded(self.space.spread(first.counts[first.front()])),
        )  # fmt: skip
        self.reporter.done("search")
        return ended

    def _worth(
        self, bound: float, spread: Callable[[Counts], Counts] | None, generation: int, candidates: Counts
    ) -> Worth:
        counts = candidates if spread is None else spread(candidates)
        errors = np.minimum(self.errors(f"{self._stage} {generation}", counts), WORST)
        prices = np.minimum(self.prices(f"price, {self._stage} {generation}", counts), WORST)
        self.count += len(counts)
        excess = np.where(prices < WORST, errors - bound, WORST)
        worth = Worth(objectives=np.stack([prices, errors], axis=1), excess=excess)
        best = prices[errors <= bound].min(initial=math.inf)
        self.reporter.advance("search", stage=self._stage, candidates=self.count, cheapest=float(best))
        return worth

    def _seeded(self, shared: Counts) -> Counts:
        """The second stage's first population: the calibrated counts, the first stage's front, and mixtures of these,
        each layer taken from one of them; where they are too few, neighbours of the calibrated counts."""
        size, start = self.settings.population[1], self.space.start()
        rng = np.random.default_rng([self.settings.seed, 2])
        parents = np.concatenate([start, shared])
        layers = np.array(self.space.layers)
        found = dict.fromkeys(tuple(row) for row in parents.tolist())
        tries = 0
        while len(found) < size:
            tries += 1
            if tries <= 4 * size and len(parents) > 1:
                takes = rng.integers(len(parents), size=layers.max() + 1)[layers]
                row = parents[takes, np.arange(len(layers))]
            else:
                row = start[0] + rng.integers(-2, 3, size=len(layers))
            found[tuple(np.clip(row, self.space.lower, self.space.upper).tolist())] = None
            if tries > 1000 * size:
                raise ConfigError(f"there are not {size} different candidates; give a smaller --population")
        return np.array(list(found)[:size], dtype=np.int64)

    def _bound(self, own: float, nats: float) -> float:
        """The bound on errors: the one given, or the least that admits every probe whose perplexity is good enough."""
        given = self.settings.bound
        if given is not None:
            if own > given:
                raise ConfigError(
                    f"bound {given:g} is infeasible: the calibrated circuit itself is off by {own:.4g}; give --bound "
                    f"{1.05 * own:.2g} or more, or leave it out to have it measured"
                )
            return given
        limit, ways, worst = nats + math.log1p(self.settings.within), self.space.ways_down(), own
        fine = dict[tuple[int, ...], bool]()
        for name in ("probes", "probes between"):  # coarse steps down, then one site at a time where they went too far
            probes = np.unique(np.concatenate(ways), axis=0)
            errors, good = self.errors(name, probes), np.empty(len(probes), dtype=bool)
            self.reporter.start("bound", -(-len(probes) // JUDGED))
            for at in range(0, len(probes), JUDGED):
                part = slice(at, at + JUDGED)
                good[part] = self.nats(f"{name}, perplexity", probes[part]) <= limit
                worst = max(worst, float(errors[part][good[part]].max(initial=0.0)))
                self.reporter.advance("bound", bound=worst)
            self.reporter.done("bound")
            fine |= {tuple(row): bool(ok) for row, ok in zip(probes.tolist(), good)}
            left = [
                self.space.between(first, last)
                for way in ways
                for first, last in pairwise(way)
                if fine[tuple(first.tolist())] and not fine[tuple(last.tolist())]
            ]
            if not (ways := [way for way in left if len(way)]):
                break
        return worst

    def _judged(self, ended: Population, bound: float, own: float, nats: float) -> Found:
        order = np.lexsort((ended.worth.objectives[:, 1], ended.worth.objectives[:, 0]))
        counts, worth = ended.counts[order], ended.worth
        worth = Worth(objectives=worth.objectives[order], excess=worth.excess[order])
        losses = []
        self.reporter.start("judge", -(-len(counts) // JUDGED))
        for at in range(0, len(counts), JUDGED):
            losses.append(self.nats("perplexity", counts[at : at + JUDGED]))
            self.reporter.advance("judge")
        self.reporter.done("judge")
        best, least = front(worth), np.concatenate(losses)
        ends = tuple(
            self._end(counts[i], worth.objectives[i, 0], worth.objectives[i, 1], least[i], i in best)
            for i in range(len(counts))
        )
        limit = nats + math.log1p(self.settings.within)
        fine = [end for end, loss, excess in zip(ends, least, worth.excess) if loss <= limit and excess <= 0.0]
        chosen = min(fine, key=lambda end: (end.price, end.iterations, end.perplexity), default=None)
        start = self.space.start()
        price = self.prices("price, calibrated", start)[0]
        return Found(
            settings=self.settings, bound=bound, calibrated=self._end(start[0], price, own, nats), ends=ends,
            chosen=chosen, candidates=self.count, seconds=self.journal.seconds,
        )  # fmt: skip

    def _end(self, row: NDArray[np.int64], price: float, error: float, nats: float, front: bool = False) -> End:
        return End(
            counts=self.space.named(row.tolist()), iterations=int(self.space.iterations(row[None])[0]),
            levels=int(self.space.spent(row[None])[0]), price=float(price), error=float(error),
            perplexity=math.exp(nats) if nats < 700.0 else math.inf, front=front,
        )  # fmt: skip

    def errors(self, question: str, counts: Counts) -> NDArray[np.float64]:
        """Errors of candidates: recorded, known from an equal one, or computed now."""
        found = self.journal.answer(question, counts, self._compute)
        self._known.update(zip(map(tuple, counts.tolist()), found.tolist()))
        return found

    def _compute(self, counts: Counts) -> NDArray[np.float64]:
        if self._reference is None:
            self._reference = self._errors.reference()
        rows = [tuple(row) for row in counts.tolist()]
        new = list(dict.fromkeys(row for row in rows if row not in self._known))
        made = dict(zip(new, self._errors.errors(np.array(new), self._reference).tolist())) if new else {}
        return np.array([made[row] if row in made else self._known[row] for row in rows])

    def prices(self, question: str, counts: Counts) -> NDArray[np.float64]:
        """The first objective of candidates; one that is given may take long, and is recorded."""
        if self._given is None:
            return self.space.spent(counts).astype(np.float64)
        return self.journal.answer(question, counts, self._given)

    def nats(self, question: str, counts: Counts) -> NDArray[np.float64]:
        """Mean losses of candidates on the text that judges."""
        return self.journal.answer(question, counts, lambda counts: self._judge.nats(counts, self._targets))


def _check_windows(circuit: Circuit, tokens: NDArray[np.int64], judged: NDArray[np.int64]) -> None:
    for name, rows, least in (("tokens", tokens, 1), ("judged", judged, 2)):
        if rows.ndim != 2 or not len(rows) or rows.shape[1] < least:
            raise DataError(f"{name}: windows are rows of token ids, got an array of shape {rows.shape}")
        if not (rows.min() >= 0 and rows.max() < circuit.shape.vocabulary):
            raise DataError(f"{name}: a token id lies outside the vocabulary of {circuit.shape.vocabulary}")
        if rows.shape[1] - least + 1 > circuit.room:
            raise DataError(
                f"{name}: windows of {rows.shape[1]} tokens do not fit the circuit's context of {circuit.room}"
            )
