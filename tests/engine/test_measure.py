# SPDX-License-Identifier: Apache-2.0
"""The measuring functions find known prices and known noise, on engines made up for it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from heatfhe.ckks.params import Params
from heatfhe.engine import BootstrapNoise, ClearEngine, Plain, Vector
from heatfhe.engine.clear import ClearValue, Noise
from heatfhe.engine.measure import describe_machine, measure, measure_request
from heatfhe.engine.noise import NoiseTable, PeriodNoise, bent, measure_noise, noise_request
from heatfhe.errors import ConfigError, FileFormatError
from heatfhe.planning import CostTable, LinearMap, preset

TOY = preset("insecure-openfhe-11")
Real = NDArray[np.float64]
PRICES = {
    "add": 1.0,
    "rotate": 50.0,
    "hoist": 20.0,
    "rotate_hoisted": 30.0,
    "rotate_summed": 9.0,
    "conjugate": 49.0,
    "tensor": 4.0,
    "relinearise": 45.0,
    "rescale": 6.0,
    "multiply_plain": 2.0,
    "encode": 9.0,
    "drop": 3.0,
    "baby": 17.0,
    "giant": 31.0,
    "diagonal": 1.5,
    "map": 40.0,
}
START = 5.0  # of a step by itself, where an engine records


class PricedEngine:
    """A clear engine whose clock advances by known prices, each times (level + 1) of the operand."""

    def __init__(self, params: Params, records: bool = False) -> None:
        self._clear = ClearEngine(params, request=measure_request(params, (8,)))
        self.params, self.records = params, records
        self.now, self.under_way, self.inside = 0.0, 0.0, not records
        self._seen: set[str] = set()

    def clock(self) -> float:
        assert self.under_way == 0.0, "a clock was read before the engine was done"
        return self.now

    def synchronize(self) -> None:
        """What was asked for is done, and paid, only now."""
        self.now += self.under_way
        self.under_way = 0.0

    def replay(self, name: Any, body: Any, values: Sequence[Any]) -> Any:
        self.under_way += 77.0  # to start it
        self.inside = True
        out = body(values)
        self.inside = False
        return out

    def _pay(self, level: int, **counts: float) -> None:
        self.under_way += (level + 1) * sum(PRICES[word] * n for word, n in counts.items())
        self.under_way += 0.0 if self.inside or "encode" in counts else START

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

    def add_rotations(self, a: ClearValue, by: Sequence[int]) -> ClearValue:
        self._pay(a.level, rotate=1, rotate_summed=len(by) - 1)
        return self._clear.add_rotations(a, by)

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

    def linear(self, a: ClearValue, m: LinearMap) -> ClearValue:
        babies, giants = (sum(k != 0 for k in steps) for steps in (m.babies, m.giants))
        if m.weight.key not in self._seen:
            self._pay(a.level, encode=m.plaintexts)
            self._seen |= {m.weight.key}
        self._pay(a.level, baby=babies, giant=giants, diagonal=m.plaintexts, map=1)
        return self._clear.linear(a, m)

    def bootstrap(self, a: ClearValue, *, period: int, bound: float) -> ClearValue:
        self.under_way += 1000.0 + period
        return self._clear.bootstrap(a, period=period, bound=bound)

    def bootstrap_pair(self, a: ClearValue, b: ClearValue, *, period: int, bound: float) -> Any:
        self.under_way += 1500.0 + 2 * period
        return self._clear.bootstrap_pair(a, b, period=period, bound=bound)


def clear_encrypt(engine: ClearEngine, values: Any, *, level: int) -> bytes:
    return engine.dump(engine.value(values, level))


@pytest.mark.parametrize("records", [False, True])
@pytest.mark.parametrize("levels", [None, (1, 4)])
def test_differences_recover_the_prices(levels: tuple[int, ...] | None, records: bool, tmp_path: Path) -> None:
    engine: Any = PricedEngine(TOY, records)
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
    assert table.pairs == {8: 1516.0, TOY.slots: 1500.0 + 2 * TOY.slots}
    for word in ("add", "rotate", "hoist", "rotate_hoisted", "rotate_summed", "conjugate"):
        for level in (4, 8):
            assert table.seconds[word][level] == pytest.approx(PRICES[word] * (level + 1))
    for word in ("tensor", "relinearise", "rescale", "multiply_plain"):
        assert table.seconds[word][4] == pytest.approx(PRICES[word] * 5)
        assert len(table.seconds[word]) == TOY.levels + 1
    parts = {"rotate_hoisted": "baby", "rotate": "giant", "multiply_plain": "diagonal", "hoist": "map"}
    for word, part in parts.items():
        assert table.seconds[f"linear.{word}"][4] == pytest.approx(PRICES[part] * 5)
    assert {table.seconds[f"linear.{word}"][4] for word in ("add", "rescale")} == {0.0}
    assert costs.encode[4] == pytest.approx(PRICES["encode"] * 5)
    assert table.seconds["drop"][4] == pytest.approx(PRICES["drop"] * 5)
    alone = dict.fromkeys(("add", "rotate", "rescale"), START) | {"multiply_plain": 0.0}
    assert set(table.started) == (set(alone) if records else set())
    for word, row in table.started.items():
        assert row[4] == pytest.approx(PRICES[word] * 5 + alone[word])
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


def noisy(noise: Noise) -> ClearEngine:
    return ClearEngine(TOY, request=noise_request(TOY, (1, 64)), noise=noise, rng=np.random.default_rng(1))


def table_of(engine: ClearEngine, repeats: int = 3) -> NoiseTable:
    return measure_noise(
        engine,
        lambda values, level: clear_encrypt(engine, values, level=level),
        lambda blob: engine.parse(blob).slots.astype(np.complex128),
        name="made-up",
        hardware="none",
        magnitudes=(0.5, 1, 8),
        periods=(1, 64),
        repeats=repeats,
        seed=2,
    )


@pytest.mark.parametrize("sigma", [1e-6, 1e-3])
def test_injected_noise_is_found_again_and_injects_the_same(sigma: float, tmp_path: Path) -> None:
    table = table_of(noisy(BootstrapNoise(sigma=sigma, floor=sigma)))
    for magnitude in (0.5, 1.0, 8.0):
        assert table.sigma[magnitude] == pytest.approx(sigma * max(1.0, magnitude), rel=0.05)
        assert table.constant[magnitude] == pytest.approx(sigma * max(1.0, magnitude), rel=0.05)
        assert table.largest[magnitude] > 2 * table.sigma[magnitude]
    table.save(tmp_path / "noise.json")
    again = table_of(noisy(NoiseTable.load(tmp_path / "noise.json").noise(TOY)))
    for magnitude in (0.5, 1.0, 8.0):
        assert again.sigma[magnitude] == pytest.approx(table.sigma[magnitude], rel=0.1)


def test_a_bend_and_noise_that_grows_with_the_period_are_found_again() -> None:
    def engines_own(values: Real, bound: float, rng: np.random.Generator) -> Real:
        """Rounding noise 1e-6 sqrt(period) of the bound; a constant c loses 1e-3 c^3 / bound^2."""
        spread = 1e-6 * bound * np.sqrt(values.shape[-1]) * rng.standard_normal(values.shape)
        return np.asarray(spread - 1e-3 * bound * bent(values / bound))

    table = table_of(noisy(engines_own), repeats=8)
    for period in (1, 64, TOY.slots):
        assert table.periods[period].spread == pytest.approx(1e-6 * np.sqrt(period), rel=0.35)
        assert table.periods[period].bias == pytest.approx(-1e-3, rel=0.02)
    assert table.at(8.0, 8).spread == pytest.approx(8e-6 * np.sqrt(8), rel=0.4)
    assert table.at(8.0, 64).bias == pytest.approx(-8e-3, rel=0.1)


def test_bent_slots_are_cubed_coefficients() -> None:
    assert bent(np.full(16, -0.5)) == pytest.approx(np.full(16, -0.125))
    rng = np.random.default_rng(3)
    for p in (1, 2, 8):
        z = rng.uniform(-1, 1, (3, p))
        roots = np.exp(2j * np.pi * np.array([pow(5, j, 4 * p) for j in range(p)]) / (4 * p))
        powers = roots[:, None] ** np.arange(2 * p)  # value at root j of X^k
        c = (z @ powers.conj()).real / p
        assert c @ powers.T == pytest.approx(z.astype(complex))  # these are the coefficients
        assert bent(z) == pytest.approx((c**3 @ powers.T).real)
    dense = rng.uniform(-1, 1, 1024)
    assert np.abs(bent(dense)).max() < 0.01  # coefficients of what looks random are small


def test_noise_tables_are_checked(tmp_path: Path) -> None:
    good: dict[str, Any] = {"name": "n", "engine": "clear", "params": "p", "hardware": "h", "samples": 1}
    good |= {"sigma": {1.0: 1e-3}, "constant": {1.0: 0.0}, "largest": {1.0: 1e-2}, "periods": {1: PeriodNoise(0, 0)}}
    assert NoiseTable(**good).at(1.0, 4).spread == pytest.approx(0.0, abs=1e-50)
    small = {word: {0.01: 1.1e-7} for word in ("sigma", "constant", "largest")}
    assert NoiseTable(**{**good, **small}).bits(0.01) == pytest.approx(16.47, abs=0.01)  # of the bound, not of one
    for change, words in (
        ({"constant": {}}, "same magnitudes"),
        ({"sigma": {1.0: float("nan")}}, "not a measurement"),
        ({"periods": {}}, "at least one period"),
        ({"periods": {4: PeriodNoise(1e-9, float("inf"))}}, "period 4"),
    ):
        with pytest.raises(ConfigError, match=words):
            NoiseTable(**{**good, **change})
    (tmp_path / "noise.json").write_text("{}")
    with pytest.raises(FileFormatError):
        NoiseTable.load(tmp_path / "noise.json")
    engine = ClearEngine(TOY)
    for bad, words in (({"magnitudes": (0,)}, "positive magnitudes"), ({"periods": (3,)}, "periods divide")):
        with pytest.raises(ConfigError, match=words):
            measure_noise(engine, lambda v, level: b"", lambda b: np.zeros(1, complex), name="x", hardware="y", **bad)  # type: ignore[arg-type]
