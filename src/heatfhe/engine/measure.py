# SPDX-License-Identifier: Apache-2.0
"""Measures an engine through the protocol alone: the cost table the planner uses, with the machine's description.

What the protocol does not offer by itself is had by differences: the price of one more term of a sum, of one more
hoisted rotation, and what is left when those are taken away. Every figure is a median. Where an engine records, a plan
plays long stretches at once and nothing waits between two steps: there the price of an operation is what one more of it
adds to a recording of several. Steps that depend on the position are in none: their price is what one more of them adds
to several that are started one after another.
"""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heatfhe.ckks import Params
from heatfhe.engine.protocol import Engine, KeyRequest
from heatfhe.errors import ConfigError
from heatfhe.planning import IN_MAPS, CostTable, Dense, LinearMap, Vector
from heatfhe.progress import SILENT, Reporter

ROTATIONS = (1, 2, 3, 4, 5, 6, 7, 8)
FEW, MANY = 2, 8  # terms of the short and the long sum, operations of the short and the long recording
WIDE = tuple(range(8))
STARTED = "started."  # before a word of a step that is in no recording
MAPS = (((0, 1), (0,)), (WIDE, (0,)), ((0, 1), (0, 2, 4, 6, 8)), (WIDE, (0, 8)))  # baby and giant steps, compared


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCosts:
    """A cost table and what it does not hold: seconds to encode a plaintext, by level."""

    table: CostTable
    encode: tuple[float, ...]
    load: float

    def as_json(self) -> dict[str, Any]:
        """Plain JSON form."""
        return {"table": self.table.as_json(), "encode": list(self.encode), "load_average": self.load}


def measure_request(params: Params, periods: Sequence[int]) -> KeyRequest:
    """The keys a measurement needs."""
    return KeyRequest(params=params, rotations=ROTATIONS, bootstrap_periods=tuple({*periods, params.slots}))


def describe_machine(threads: int = 1) -> str:
    """Processor, cores, system and Python in one line."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        lines = info.read_text().splitlines()
        model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), model)
    used = f"{threads} thread{'s' if threads != 1 else ''}"
    return f"{model}, {os.cpu_count()} cores, {used}, {platform.system()}, Python {platform.python_version()}"


@dataclass
class _Watch:
    """Times what an engine does."""

    engine: Engine[Any]
    repeats: int
    clock: Callable[[], float]
    recordings: Iterator[int] = field(default_factory=count)

    def _now(self) -> float:
        self.engine.synchronize()
        return self.clock()

    def alone(self, step: Callable[[], Any], warm: int = 1) -> float:
        """Median seconds of a step that is waited for."""
        for _ in range(warm):
            step()
        times = []
        for _ in range(self.repeats):
            began = self._now()
            step()
            times.append(self._now() - began)
        return statistics.median(times)

    def seconds(self, step: Callable[..., Any], *args: Any) -> float:
        """What a step adds to a plan."""
        step = partial(step, *args)
        if not self.engine.records:
            return self.alone(step)
        return max(0.0, (self._played(step, MANY) - self._played(step, FEW)) / (MANY - FEW))

    def started(self, step: Callable[..., Any], *args: Any) -> float:
        """What a step adds that is in no recording: started by itself, others before it, waited for at the end."""
        step = partial(step, *args)
        few, many = (self.alone(lambda k=k: [step() for _ in range(k)], warm=3) for k in (FEW, MANY))  # type: ignore[misc]
        return max(0.0, (many - few) / (MANY - FEW))

    def _played(self, step: Callable[[], Any], times: int) -> float:
        def body(given: Sequence[Any]) -> list[Any]:
            for _ in range(times):
                step()
            return []

        name = ("measure", next(self.recordings))
        return self.alone(lambda: self.engine.replay(name, body, []), warm=3)  # as it is, recorded, played

    def marginal(self, step: Callable[[int], Any], seconds: Callable[..., float] | None = None) -> tuple[float, float]:
        """Of a step with so many terms: what one more adds, and what few terms leave besides."""
        few, many = ((seconds or self.seconds)(step, k) for k in (FEW, MANY))
        one = max(0.0, (many - few) / (MANY - FEW))
        return one, max(0.0, few - FEW * one)


def _row(watch: _Watch, encrypt: Callable[..., bytes], values: NDArray[np.float64], level: int) -> dict[str, float]:
    """Prices at one level; products are had from level 1 on."""
    engine, seconds, at = watch.engine, watch.seconds, max(1, level)
    plain, fresh = (Vector("measure/plain", lambda: values, keep=keep) for keep in (True, False))
    top = engine.parse(encrypt(values, level=at))
    a = engine.drop(top, level) if level < at else top
    row = {"add": seconds(engine.add, a, a), "conjugate": seconds(engine.conjugate, a)}
    row["rotate"] = seconds(engine.rotate, a, 1)
    row["rotate_hoisted"], row["hoist"] = watch.marginal(lambda k: engine.rotate_many(a, ROTATIONS[:k]))
    row["rotate_summed"], _ = watch.marginal(lambda k: engine.add_rotations(a, ROTATIONS[:k]))
    row["multiply_plain"], _ = watch.marginal(lambda k: engine.multiply_plain_sum([(top, plain)] * k))
    row["rescale"] = max(0.0, seconds(engine.multiply_plain, top, plain) - row["multiply_plain"])
    made, kept = (watch.alone(partial(engine.multiply_plain, top, p)) for p in (fresh, plain))
    row["encode"] = max(0.0, made - kept)
    row["multiply"] = seconds(engine.multiply, top, top)
    row["tensor"], _ = watch.marginal(lambda k: engine.multiply_sum([(top, top)] * k))
    row["relinearise"] = max(0.0, row["multiply"] - row["tensor"] - row["rescale"])
    row["drop"] = seconds(engine.drop, top, at - 1)
    maps = [
        LinearMap(weight=Dense(f"measure{i}"), babies=babies, giants=giants, make=lambda g, b: values)
        for i, (babies, giants) in enumerate(MAPS)
    ]
    prices = map_prices([seconds(engine.linear, top, m) for m in maps])
    row |= {IN_MAPS + word: price for word, price in prices.items()}
    if not engine.records:
        return row
    started = {"add": watch.started(engine.add, a, a), "rotate": watch.started(engine.rotate, a, 1)}
    started["multiply_plain"], _ = watch.marginal(
        lambda k: engine.multiply_plain_sum([(top, plain)] * k), watch.started
    )
    started["rescale"] = max(0.0, watch.started(engine.multiply_plain, top, plain) - started["multiply_plain"])
    return row | {STARTED + word: price for word, price in started.items()}


def measure(
    engine: Engine[Any],
    encrypt: Callable[..., bytes],
    *,
    name: str,
    hardware: str,
    periods: Sequence[int] = (),
    repeats: int = 5,
    levels: Sequence[int] | None = None,
    reporter: Reporter = SILENT,
    clock: Callable[[], float] = time.perf_counter,
) -> EngineCosts:
    """The cost table of an engine opened for ``measure_request``; ``encrypt`` is its keyring's method.

    ``levels`` to measure at, all by default; the prices between are interpolated. Level 0 has no products: they are
    priced there as at level 1.
    """
    params = engine.params
    if repeats < 1:
        raise ConfigError(f"repeats must be at least 1, got {repeats}")
    asked = sorted({*(levels if levels is not None else range(params.levels + 1)), 0, params.levels})
    if asked[0] < 0 or asked[-1] > params.levels:
        raise ConfigError(f"levels to measure lie in 0 to {params.levels}, got {asked}")
    wide = sorted({*periods, params.slots})
    values = np.random.default_rng(0).uniform(-1, 1, params.slots)
    watch = _Watch(engine, repeats, clock)
    reporter.start("measure", len(asked) + len(wide))
    rows: dict[int, dict[str, float]] = {}
    for level in asked:
        rows[level] = _row(watch, encrypt, values, level)
        reporter.advance("measure", level=level)
    refresh, pairs = {}, {}
    for period in wide:
        x = engine.parse(encrypt(np.tile(values[:period], params.slots // period), level=0))
        refresh[period] = watch.alone(partial(engine.bootstrap, x, period=period, bound=1.0), warm=3)
        pairs[period] = watch.alone(partial(engine.bootstrap_pair, x, x, period=period, bound=1.0), warm=3)
        reporter.advance("measure", period=period)
    reporter.done("measure")

    def column(word: str) -> tuple[float, ...]:
        every = range(params.levels + 1)
        return tuple(float(s) for s in np.interp(every, asked, [rows[level][word] for level in asked]))

    words = [w for w in rows[asked[0]] if w != "encode" and not w.startswith(STARTED)]
    load = os.getloadavg()[0]
    table = CostTable.measured(
        name=name,
        provenance=(
            f"measured: {params.engine} engine, {params.name}, median of {repeats}, load average {load:.1f} at the "
            f"end, levels {', '.join(map(str, asked))}"
        ),
        hardware=hardware,
        slots=params.slots,
        bootstrap=refresh,
        seconds={w: column(w) for w in words},
        pairs=pairs,
        started={w.removeprefix(STARTED): column(w) for w in rows[asked[0]] if w.startswith(STARTED)},
    )
    return EngineCosts(table=table, encode=column("encode"), load=load)


def map_prices(seconds: Sequence[float]) -> dict[str, float]:
    """What a map, a baby step, a giant step and a diagonal cost, from four maps: none, one, four and one giant step.

    With b, g, p for those and c for the rest: c + b + 2p, c + 7b + 8p, c + b + 4g + 10p, c + 7b + g + 16p.
    """
    plain, wide, tall, both = seconds
    giant = max(0.0, (tall - plain - (both - wide)) / 3)
    diagonal = max(0.0, (both - wide - giant) / 8)
    baby = max(0.0, (wide - plain) / 6 - diagonal)
    rest = max(0.0, plain - baby - 2 * diagonal)
    return {
        "add": 0.0, "hoist": rest, "multiply_plain": diagonal, "rescale": 0.0, "rotate": giant, "rotate_hoisted": baby,
    }  # fmt: skip
