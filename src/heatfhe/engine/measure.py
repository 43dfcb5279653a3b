# SPDX-License-Identifier: Apache-2.0
"""Measures an engine through the protocol alone: the cost table the planner uses, with the machine's description.

What the protocol does not offer by itself is had by differences: the price of one more term of a sum, of one more
hoisted rotation, and what is left when those are taken away. Every figure is a median.
"""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from heatfhe.ckks import Params
from heatfhe.engine.protocol import Engine, KeyRequest
from heatfhe.errors import ConfigError
from heatfhe.planning import CostTable, Vector
from heatfhe.progress import SILENT, Reporter

ROTATIONS = (1, 2, 3, 4, 5, 6, 7, 8)
FEW, MANY = 2, 8  # terms of the short and the long sum that are compared


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
    rng = np.random.default_rng(0)
    values = rng.uniform(-1, 1, params.slots)
    plain = Vector("measure/plain", lambda: values)
    fresh = Vector("measure/fresh", lambda: values, keep=False)

    def now() -> float:
        engine.synchronize()
        return clock()

    def seconds(step: Callable[[], Any]) -> float:
        step()
        times = []
        for _ in range(repeats):
            began = now()
            step()
            times.append(now() - began)
        return statistics.median(times)

    reporter.start("measure", len(asked) + len(wide))
    rows: dict[int, dict[str, float]] = {}
    for level in asked:
        at = max(1, level)
        top = engine.parse(encrypt(values, level=at))
        a = engine.drop(top, level) if level < at else top
        row = {"add": seconds(partial(engine.add, a, a)), "conjugate": seconds(partial(engine.conjugate, a))}
        row["rotate"] = seconds(partial(engine.rotate, a, 1))
        few = seconds(partial(engine.rotate_many, a, ROTATIONS[:FEW]))
        many = seconds(partial(engine.rotate_many, a, ROTATIONS[:MANY]))
        row["rotate_hoisted"] = max(0.0, (many - few) / (MANY - FEW))
        row["hoist"] = max(0.0, few - FEW * row["rotate_hoisted"])
        one = seconds(partial(engine.multiply_plain, top, plain))
        sum_few = seconds(partial(engine.multiply_plain_sum, [(top, plain)] * FEW))
        sum_many = seconds(partial(engine.multiply_plain_sum, [(top, plain)] * MANY))
        row["multiply_plain"] = max(0.0, (sum_many - sum_few) / (MANY - FEW))
        row["rescale"] = max(0.0, one - row["multiply_plain"])
        row["encode"] = max(0.0, seconds(partial(engine.multiply_plain, top, fresh)) - one)
        row["multiply"] = seconds(partial(engine.multiply, top, top))
        few = seconds(partial(engine.multiply_sum, [(top, top)] * FEW))
        many = seconds(partial(engine.multiply_sum, [(top, top)] * MANY))
        row["tensor"] = max(0.0, (many - few) / (MANY - FEW))
        row["relinearise"] = max(0.0, row["multiply"] - row["tensor"] - row["rescale"])
        row["drop"] = seconds(partial(engine.drop, top, at - 1))
        rows[level] = row
        reporter.advance("measure", level=level)
    refresh, pairs = {}, {}
    for period in wide:
        x = engine.parse(encrypt(np.tile(values[:period], params.slots // period), level=0))
        refresh[period] = seconds(partial(engine.bootstrap, x, period=period, bound=1.0))
        pairs[period] = seconds(partial(engine.bootstrap_pair, x, x, period=period, bound=1.0))
        reporter.advance("measure", period=period)
    reporter.done("measure")

    def column(word: str) -> tuple[float, ...]:
        every = range(params.levels + 1)
        return tuple(float(s) for s in np.interp(every, asked, [rows[level][word] for level in asked]))

    words = [w for w in rows[asked[0]] if w != "encode"]
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
    )
    return EngineCosts(table=table, encode=column("encode"), load=load)
