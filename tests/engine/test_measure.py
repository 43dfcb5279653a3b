# SPDX-License-Identifier: Apache-2.0
"""The measuring functions find known prices and known noise, on engines made up for it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heatfhe.ckks.params import Params
from heatfhe.engine import BootstrapNoise, ClearEngine
from heatfhe.engine.clear import ClearValue
from heatfhe.engine.measure import describe_machine, measure, measure_request
from heatfhe.engine.noise import NoiseTable, measure_noise, noise_request
from heatfhe.engine.openfhe_params import openfhe_params
from heatfhe.engine.protocol import Plain, Vector
from heatfhe.errors import ConfigError, FileFormatError
from heatfhe.planning import CostTable

TOY = openfhe_params("insecure-openfhe-11")
PRICES = {
    "add": 1.0,
    "rotate": 50.0,
    "hoist": 20.0,
    "rotate_hoisted": 30.0,
    "conjugate": 49.0,
    "tensor": 4.0,
    "relinearise": 45.0,
    "rescale": 6.0,
    "multiply_plain": 2.0,
    "encode": 9.0,
    "drop": 3.0,
}


class PricedEngine:
    """A clear engine whose clock advances by known prices, each times (level + 1) of the operand."""

    def __init__(self, params: Params) -> None:
        self._clear = ClearEngine(params, request=measure_request(params, (8,)))
        self.params = params
        self.now = 0.0
        self._seen: set[str] = set()

    def clock(self) -> float:
        return self.now

    def _pay(self, level: int, **counts: float) -> None:
        self.now += (level + 1) * sum(PRICES[word] * n for word, n in counts.items())

    def _plain(self, level: int, p: Plain) -> None:
        if isinstance(p, Vector) and (not p.keep or p.key not in self._seen):
            self._pay(level, encode=1)
            self._seen |= {p.key} if p.keep else set()

    def parse(self, blob: bytes) -> ClearValue:
        return self._clear.parse(blob)

    def level(self, a: ClearValue) -> int:
        return a.level

    def add(self, a: ClearValue, b: ClearValue) -> ClearValue:
        self._pay(a.level, add=1)
        return self._clear.add(a, b)

    def conjugate(self, a: ClearValue) -> ClearValue:
        self._pay(a.level, conjugate=1)
        return self._clear.conjugate(a)

    def rotate(self, a: ClearValue, by: int) -> ClearValue:
        self._pay(a.level, rotate=1)
        return self._clear.rotate(a, by)

    def rotate_many(self, a: ClearValue, by: Sequence[int]) -> list[ClearValue]:
        self._pay(a.level, hoist=1, rotate_hoisted=len(by))
        return self._clear.rotate_many(a, by)

    def drop(self, a: ClearValue, level: int) -> ClearValue:
        self._pay(a.level, drop=1)
        return self._clear.drop(a, level)

    def multiply(self, a: ClearValue, b: ClearValue) -> ClearValue:
        self._pay(a.level, tensor=1, relinearise=1, rescale=1)
        return self._clear.multiply(a, b)

    def multiply_sum(self, pairs: Sequence[tuple[ClearValue, ClearValue]]) -> ClearValue:
        self._pay(pairs[0][0].level, tensor=len(pairs), relinearise=1, rescale=1)
        return self._clear.multiply_sum(pairs)

    def multiply_plain(self, a: ClearValue, p: Plain) -> ClearValue:
        return self.multiply_plain_sum([(a, p)])

    def multiply_plain_sum(self, pairs: Sequence[tuple[ClearValue, Plain]]) -> ClearValue:
        level = pairs[0][0].level
        for _, p in pairs:
            self._plain(level, p)
        self._pay(level, multiply_plain=len(pairs), rescale=1)
        return self._clear.multiply_plain_sum(pairs)

    def bootstrap(self, a: ClearValue, *, period: int, bound: float) -> ClearValue:
        self.now += 1000.0 + period
        return self._clear.bootstrap(a, period=period, bound=bound)


def clear_encrypt(engine: ClearEngine, values: Any, *, level: int) -> bytes:
    return engine.dump(engine.value(values, level))


@pytest.mark.parametrize("levels", [None, (1, 4)])
def test_differences_recover_the_prices(levels: tuple[int, ...] | None, tmp_path: Path) -> None:
    engine: Any = PricedEngine(TOY)
    costs = measure(
        engine,
        lambda values, level: clear_encrypt(engine._clear, values, level=level),
        name="made-up",
        hardware="none",
        periods=(8,),
        repeats=3,
        levels=levels,
        clock=engine.clock,
    )
    table = costs.table
    assert table.bootstrap == {8: 1008.0, TOY.slots: 1000.0 + TOY.slots}
    for word in ("add", "rotate", "hoist", "rotate_hoisted", "conjugate"):
        for level in (4, 8):
            assert table.seconds[word][level] == pytest.approx(PRICES[word] * (level + 1))
    for word in ("tensor", "relinearise", "rescale", "multiply_plain"):
        assert table.seconds[word][4] == pytest.approx(PRICES[word] * 5)
        assert len(table.seconds[word]) == TOY.levels + 1
    assert costs.encode[4] == pytest.approx(PRICES["encode"] * 5)
    assert costs.drop[4] == pytest.approx(PRICES["drop"] * 5)
    table.save(tmp_path / "costs.json")
    assert CostTable.load(tmp_path / "costs.json") == table


def test_impossible_measurements_are_refused() -> None:
    engine: Any = PricedEngine(TOY)
    for options in ({"repeats": 0}, {"levels": (9,)}, {"levels": (-1,)}):
        with pytest.raises(ConfigError):
            measure(engine, lambda v, level: b"", name="x", hardware="y", **options)


def test_the_machine_has_a_description() -> None:
    assert "1 thread," in describe_machine(1)
    assert "2 threads," in describe_machine(2)


@pytest.mark.parametrize("sigma", [1e-6, 1e-3])
def test_injected_noise_is_found_again_and_injects_the_same(sigma: float, tmp_path: Path) -> None:
    def noisy(noise: BootstrapNoise) -> ClearEngine:
        request = noise_request(TOY)
        return ClearEngine(TOY, request=request, noise=noise, rng=np.random.default_rng(1))

    def table_of(engine: ClearEngine) -> NoiseTable:
        return measure_noise(
            engine,
            lambda values, level: clear_encrypt(engine, values, level=level),
            lambda blob: engine.parse(blob).slots.astype(np.complex128),
            name="made-up",
            hardware="none",
            magnitudes=(0.5, 1, 8),
            repeats=3,
            seed=2,
        )

    table = table_of(noisy(BootstrapNoise(sigma=sigma, floor=sigma)))
    for magnitude in (0.5, 1.0, 8.0):
        assert table.sigma[magnitude] == pytest.approx(sigma * max(1.0, magnitude), rel=0.05)
        assert table.constant[magnitude] == pytest.approx(sigma * max(1.0, magnitude), rel=0.05)
        assert table.largest[magnitude] > 2 * table.sigma[magnitude]
    table.save(tmp_path / "noise.json")
    again = table_of(noisy(NoiseTable.load(tmp_path / "noise.json").noise()))
    for magnitude in (0.5, 1.0, 8.0):
        assert again.sigma[magnitude] == pytest.approx(table.sigma[magnitude], rel=0.1)


def test_noise_tables_are_checked(tmp_path: Path) -> None:
    good = {"name": "n", "engine": "clear", "params": "p", "hardware": "h", "samples": 1}
    with pytest.raises(ConfigError, match="same magnitudes"):
        NoiseTable(**good, sigma={1.0: 1e-3}, constant={}, largest={1.0: 1e-2})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="not a measurement"):
        NoiseTable(**good, sigma={1.0: float("nan")}, constant={1.0: 0.0}, largest={1.0: 0.0})  # type: ignore[arg-type]
    (tmp_path / "noise.json").write_text("{}")
    with pytest.raises(FileFormatError):
        NoiseTable.load(tmp_path / "noise.json")
    engine = ClearEngine(TOY)
    with pytest.raises(ConfigError, match="positive magnitudes"):
        measure_noise(
            engine, lambda v, level: b"", lambda b: np.zeros(1, complex), name="x", hardware="y", magnitudes=(0,)
        )
