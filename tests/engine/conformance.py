# SPDX-License-Identifier: Apache-2.0
"""One suite any engine and its keyring are passed through. Subclass ``EngineConformance`` under a name with ``Test``.

    class TestClear(EngineConformance):
        params = ...                      # the set to run at
        level_bits = 40.0                 # what one product keeps: -log2 of the largest error on inputs in [-1, 1]
        periods = (8, params.slots)       # bootstraps to try

        @staticmethod
        def open(request):                # a keyring, and an engine opened from its public keys
            ...

Every test draws its values from a seed written in it; a refresh keeps ``params.promised_bits`` relative to its bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from heatfhe.ckks.params import Params
from heatfhe.engine import Engine, KeyRequest, Keyring, Vector
from heatfhe.errors import EngineError, MissingKeyError, OutOfLevelsError, WireError
from tests.engine.maps import linear_map

ROTATIONS = (1, 2, 5, -3)
UNLISTED = 11


def bits(got: NDArray[Any], wanted: NDArray[Any]) -> float:
    """-log2 of the largest error, at most 60."""
    return min(60.0, -math.log2(max(float(np.abs(np.asarray(got) - np.asarray(wanted)).max()), 2.0**-60)))


def vector(name: str, values: NDArray[Any]) -> Vector:
    """A plaintext vector under a key of its own."""
    return Vector(name, lambda: values)


@dataclass(frozen=True)
class Pair:
    """A keyring and an engine that share keys."""

    ring: Keyring
    engine: Engine[Any]

    @property
    def slots(self) -> int:
        return self.engine.params.slots

    @property
    def top(self) -> int:
        return self.engine.params.levels

    def put(self, values: NDArray[Any], level: int | None = None) -> Any:
        return self.engine.parse(self.ring.encrypt(values, level=self.top if level is None else level))

    def get(self, value: Any) -> NDArray[np.complex128]:
        return self.ring.decrypt(self.engine.dump(value))

    def real(self, seed: int, scale: float = 1.0) -> NDArray[np.float64]:
        return np.random.default_rng(seed).uniform(-scale, scale, self.slots)

    def periodic(self, seed: int, period: int, scale: float = 1.0) -> NDArray[np.float64]:
        return np.tile(np.random.default_rng(seed).uniform(-scale, scale, period), self.slots // period)


class EngineConformance:
    """What every engine must do. Tests share one pair: opening it is the dear part."""

    params: ClassVar[Params]
    level_bits: ClassVar[float]
    periods: ClassVar[tuple[int, ...]]

    @staticmethod
    def open(request: KeyRequest) -> tuple[Keyring, Engine[Any]]:
        """A keyring for the request, and an engine opened from its public keys."""
        raise NotImplementedError

    @pytest.fixture(scope="class")
    def pair(self) -> Pair:
        cls = type(self)
        return Pair(*cls.open(KeyRequest(params=cls.params, rotations=ROTATIONS, bootstrap_periods=cls.periods)))

    # ----- values and levels -----

    def test_encrypt_then_decrypt_is_identity_at_every_level(self, pair: Pair) -> None:
        for level in range(pair.top + 1):
            x = pair.real(level) + 1j * pair.real(100 + level)
            c = pair.put(x, level)
            assert pair.engine.level(c) == level
            assert bits(pair.get(c), x) >= self.level_bits

    def test_sums_are_free(self, pair: Pair) -> None:
        e, x, y = pair.engine, pair.real(1), pair.real(2)
        a, b = pair.put(x, 1), pair.put(y, 1)
        for got, wanted in (
            (e.add(a, b), x + y),
            (e.sub(a, b), x - y),
            (e.negate(a), -x),
            (e.add_plain(a, vector("sums/y", y)), x + y),
            (e.add_plain(a, 0.25), x + 0.25),
            (e.add_plain(a, 0.25 - 0.5j), x + 0.25 - 0.5j),
            (e.add(a, a), 2 * x),
        ):
            assert e.level(got) == 1
            assert bits(pair.get(got), wanted) >= self.level_bits - 2

    @pytest.mark.parametrize("k", [0, 1, 2, 3, -1, -7, 1000])
    def test_times_is_free_and_exact(self, pair: Pair, k: int) -> None:
        x = pair.real(3)
        got = pair.engine.times(pair.put(x, 0), k)
        assert pair.engine.level(got) == 0
        assert bits(pair.get(got), k * x) >= self.level_bits - math.log2(abs(k) + 1) - 1

    def test_products_cost_one_level(self, pair: Pair) -> None:
        e, x, y, m = pair.engine, pair.real(4), pair.real(5), pair.real(6)
        a, b = pair.put(x, 3), pair.put(y, 3)
        for got, wanted in (
            (e.multiply(a, b), x * y),
            (e.multiply(a, a), x * x),
            (e.multiply_plain(a, vector("products/m", m)), x * m),
            (e.multiply_plain(a, vector("products/mi", 1j * m)), 1j * x * m),
            (e.multiply_plain(a, 0.3), 0.3 * x),
            (e.multiply_plain(a, 0.3 - 0.1j), (0.3 - 0.1j) * x),
            (e.multiply_sum([(a, b), (a, a), (b, b)]), x * y + x * x + y * y),
            (e.multiply_sum([(a, b)]), x * y),
            (e.multiply_plain_sum([(a, vector("products/m", m)), (b, -0.7), (a, 0.2)]), x * m - 0.7 * y + 0.2 * x),
        ):
            assert e.level(got) == 2
            assert bits(pair.get(got), wanted) >= self.level_bits - 3

    def test_products_at_every_level_down_to_zero(self, pair: Pair) -> None:
        e, x, y = pair.engine, pair.real(7), pair.real(8)
        c, wanted = pair.put(x), x
        for level in range(pair.top - 1, -1, -1):
            c, wanted = e.multiply(c, pair.put(y, level + 1)), wanted * y
            assert e.level(c) == level
        assert bits(pair.get(c), wanted) >= self.level_bits - 5

    def test_no_level_no_product(self, pair: Pair) -> None:
        e, a = pair.engine, pair.put(pair.real(9), 0)
        identity = linear_map("empty/identity", {0: {0: np.ones(pair.slots)}})
        products: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
            (e.multiply, (a, a)),
            (e.multiply_sum, ([(a, a)],)),
            (e.multiply_plain, (a, 0.5)),
            (e.multiply_plain_sum, ([(a, 0.5)],)),
            (e.linear, (a, identity)),
        ]
        for product, operands in products:
            with pytest.raises(OutOfLevelsError):
                product(*operands)

    def test_operands_at_different_levels_are_refused(self, pair: Pair) -> None:
        e, a, b = pair.engine, pair.put(pair.real(10), 3), pair.put(pair.real(11), 2)
        for step in (e.add, e.sub, e.multiply):
            with pytest.raises(EngineError):
                step(a, b)
        with pytest.raises(EngineError):
            e.multiply_sum([(a, a), (b, b)])
        with pytest.raises(EngineError):
            e.multiply_plain_sum([(a, 0.5), (b, 0.5)])

    def test_drop_keeps_the_value(self, pair: Pair) -> None:
        e, x = pair.engine, pair.real(12)
        a = pair.put(x)
        for level in range(pair.top + 1):
            low = e.drop(a, level)
            assert e.level(low) == level
            assert bits(pair.get(low), x) >= min(self.level_bits, 30.0)
        assert e.level(a) == pair.top
        with pytest.raises(EngineError):
            e.drop(pair.put(x, 1), 2)
        with pytest.raises(EngineError):
            e.drop(a, -1)

    def test_a_dropped_value_mixes_with_others(self, pair: Pair) -> None:
        e, x, y = pair.engine, pair.real(13), pair.real(14)
        low = e.drop(pair.put(x), 1)
        b = e.multiply(pair.put(y, 2), pair.put(y, 2))
        assert bits(pair.get(e.add(low, b)), x + y * y) >= min(self.level_bits - 3, 30.0)
        assert bits(pair.get(e.multiply(low, b)), x * y * y) >= min(self.level_bits - 3, 30.0)

    # ----- slots -----

    @pytest.mark.parametrize("by", [*ROTATIONS, 0])
    def test_rotations(self, pair: Pair, by: int) -> None:
        x = pair.real(15) + 1j * pair.real(16)
        a = pair.put(x, 1)
        for shift in (by, by + pair.slots, by - pair.slots):
            got = pair.engine.rotate(a, shift)
            assert pair.engine.level(got) == 1
            assert bits(pair.get(got), np.roll(x, -by)) >= self.level_bits - 3

    def test_rotate_many_keeps_order_and_repeats(self, pair: Pair) -> None:
        x, by = pair.real(17), [5, 0, 1, 5, -3]
        got = pair.engine.rotate_many(pair.put(x, 0), by)
        assert len(got) == len(by)
        for value, shift in zip(got, by, strict=True):
            assert bits(pair.get(value), np.roll(x, -shift)) >= self.level_bits - 3
        assert pair.engine.rotate_many(pair.put(x, 0), []) == []

    def test_rotations_are_added_to_the_value(self, pair: Pair) -> None:
        x = pair.real(17) + 1j * pair.real(25)
        for level in (0, 2):
            got = pair.engine.add_rotations(pair.put(x, level), [1, 5, -3])
            assert pair.engine.level(got) == level
            wanted = x + np.roll(x, -1) + np.roll(x, -5) + np.roll(x, 3)
            assert bits(pair.get(got), wanted) >= self.level_bits - 4

    def test_a_rotation_without_key_is_refused(self, pair: Pair) -> None:
        e, a = pair.engine, pair.put(pair.real(18), 2)
        one = np.ones(pair.slots)
        steps: list[tuple[Callable[..., Any], Any]] = [
            (e.rotate, UNLISTED),
            (e.rotate_many, [1, UNLISTED]),
            (e.add_rotations, [1, UNLISTED]),
            (e.linear, linear_map("nokey/baby", {0: {UNLISTED: one}})),
            (e.linear, linear_map("nokey/giant", {UNLISTED: {0: one}})),
        ]
        for step, operand in steps:
            with pytest.raises(MissingKeyError):
                step(a, operand)

    def test_conjugation_and_the_imaginary_unit(self, pair: Pair) -> None:
        e, z = pair.engine, pair.real(19) + 1j * pair.real(20)
        a = pair.put(z, 2)
        cost = int(dict(pair.engine.params.literal).get("times_i_levels", 0))
        assert e.level(e.conjugate(a)) == 2
        assert bits(pair.get(e.conjugate(a)), z.conj()) >= self.level_bits - 3
        assert e.level(e.times_i(a)) == 2 - cost
        assert bits(pair.get(e.times_i(a)), 1j * z) >= self.level_bits - 3

    @pytest.mark.parametrize("giants", [(0,), (0, 5), (-3, 1)])
    def test_linear_map_is_its_sum(self, pair: Pair, giants: tuple[int, ...]) -> None:
        babies = (0, 1, 2)
        x = pair.real(21)
        rng = np.random.default_rng(22)
        d = {(g, b): rng.uniform(-1, 1, pair.slots) for g in giants for b in babies}
        name = "linear/" + "_".join(map(str, giants))
        m = linear_map(name, {g: {b: d[g, b] for b in babies} for g in giants})
        wanted = sum(np.roll(sum(d[g, b] * np.roll(x, -b) for b in babies), -g) for g in giants)
        for level in (1, pair.top):
            got = pair.engine.linear(pair.put(x, level), m)
            assert pair.engine.level(got) == level - 1
            assert bits(pair.get(got), np.asarray(wanted)) >= self.level_bits - 5

    def test_steps_leave_their_operands_alone(self, pair: Pair) -> None:
        e, x, y = pair.engine, pair.real(23), pair.real(24)
        a, b = pair.put(x, 2), pair.put(y, 2)
        one = np.ones(pair.slots)
        e.multiply_sum([(a, b), (a, b)])
        e.multiply_plain_sum([(a, 0.5), (b, 0.5)])
        e.linear(a, linear_map("alone/map", {0: {0: one, 1: one}, 1: {0: one}}))
        for step in (e.add, e.sub, e.multiply):
            step(a, b)
        e.add(e.times(a, 1), b)
        e.times_i(a)
        e.drop(a, 0)
        e.rotate_many(a, [0, 1])
        e.bootstrap(a, period=pair.slots, bound=4.0)
        e.bootstrap_pair(e.drop(a, 0), e.drop(b, 0), period=pair.slots, bound=4.0)
        assert e.level(a) == e.level(b) == 2
        assert bits(pair.get(a), x) >= self.level_bits
        assert bits(pair.get(b), y) >= self.level_bits

    # ----- bootstraps -----

    @pytest.mark.parametrize("bound", [0.5, 1.0, 40.0])
    def test_bootstrap_refreshes_every_period(self, pair: Pair, bound: float) -> None:
        for period in self.periods:
            x = pair.periodic(25, period, bound)
            for level in (0, 2):
                got = pair.engine.bootstrap(pair.put(x, level), period=period, bound=bound)
                assert pair.engine.level(got) == pair.top
                assert bits(pair.get(got) / max(1.0, bound), x / max(1.0, bound)) >= self.params.promised_bits

    def test_bootstrap_of_a_constant(self, pair: Pair) -> None:
        for period in self.periods:
            for value in (1.0, -1.0, 0.0):
                x = np.full(pair.slots, value)
                got = pair.engine.bootstrap(pair.put(x, 0), period=period, bound=1.0)
                assert bits(pair.get(got), x) >= self.params.promised_bits

    def test_bootstrap_pair_refreshes_both(self, pair: Pair) -> None:
        for period in self.periods:
            x, y = pair.periodic(26, period, 3.0), pair.periodic(27, period, 3.0)
            left = self.params.levels - self.params.pair_levels
            low = self.params.pair_levels
            got = pair.engine.bootstrap_pair(pair.put(x, low), pair.put(y, low), period=period, bound=3.0)
            for value, wanted in zip(got, (x, y), strict=True):
                assert pair.engine.level(value) == left
                assert bits(pair.get(value) / 3.0, wanted / 3.0) >= self.params.promised_bits

    def test_arithmetic_goes_on_after_a_bootstrap(self, pair: Pair) -> None:
        e, x, y = pair.engine, pair.real(28), pair.real(29)
        a = e.bootstrap(pair.put(x, 0), period=pair.slots, bound=1.0)
        b = pair.put(y)
        for _ in range(pair.top):
            a, b = e.multiply(a, b), e.drop(b, e.level(b) - 1)
        assert e.level(a) == 0
        assert bits(pair.get(a), x * y**pair.top) >= self.params.promised_bits - 2
        again = e.bootstrap(a, period=pair.slots, bound=1.0)
        assert e.level(again) == pair.top
        assert bits(pair.get(again), x * y**pair.top) >= self.params.promised_bits - 2

    def test_a_refresh_is_real(self, pair: Pair) -> None:
        got = pair.get(pair.engine.bootstrap(pair.put(pair.real(30), 0), period=pair.slots, bound=1.0))
        assert float(np.abs(got.imag).max()) <= 2.0 ** -(self.params.promised_bits + 3)

    def test_a_period_without_keys_is_refused(self, pair: Pair) -> None:
        e, a = pair.engine, pair.put(pair.real(31), 0)
        assert 4 not in self.periods
        with pytest.raises(MissingKeyError):
            e.bootstrap(a, period=4, bound=1.0)
        with pytest.raises(MissingKeyError):
            e.bootstrap_pair(a, a, period=4, bound=1.0)

    # ----- wire -----

    def test_dump_then_parse_is_identity(self, pair: Pair) -> None:
        e, x = pair.engine, pair.real(32)
        for value in (pair.put(x), e.multiply(pair.put(x, 2), pair.put(x, 2))):
            blob = e.dump(value)
            again = e.parse(blob)
            assert e.level(again) == e.level(value)
            assert e.dump(again) == blob

    @settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(where=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
    def test_any_flipped_bit_is_refused(self, pair: Pair, where: float, bit: int) -> None:
        blob = bytearray(pair.ring.encrypt(pair.real(33), level=0))
        blob[int(where * len(blob))] ^= 1 << bit
        with pytest.raises(WireError):
            pair.engine.parse(bytes(blob))

    @settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(keep=st.floats(0, 1, exclude_max=True), junk=st.binary(max_size=300))
    def test_truncated_extended_and_junk_blobs_are_refused(self, pair: Pair, keep: float, junk: bytes) -> None:
        blob = pair.ring.encrypt(pair.real(34), level=0)
        for bad in (blob[: int(keep * len(blob))], junk, blob + (junk or b"\0"), junk + blob if junk else b""):
            with pytest.raises(WireError):
                pair.engine.parse(bad)

    # ----- for all programs -----

    @settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(steps=st.lists(st.tuples(st.integers(0, 8), st.integers(0, 3), st.integers(0, 3)), max_size=12))
    def test_any_program_equals_numpy(self, pair: Pair, steps: list[tuple[int, int, int]]) -> None:
        e, m = pair.engine, pair.real(35)
        clear: list[NDArray[Any]] = [pair.real(36 + i) for i in range(4)]
        held = [pair.put(x) for x in clear]
        levels = [pair.top] * 4
        for kind, i, j in steps:
            low = min(levels[i], levels[j])
            if kind in (2, 3, 4) and low < 1:
                continue
            a, b = e.drop(held[i], low), e.drop(held[j], low)
            x, y = clear[i], clear[j]
            step, operands, wanted, spent = (
                (e.add, (a, b), x + y, 0),
                (e.sub, (a, b), x - y, 0),
                (e.multiply, (a, b), x * y, 1),
                (e.multiply_plain, (a, vector("program/m", m)), x * m, 1),
                (e.multiply_sum, ([(a, b), (a, a)],), x * y + x * x, 1),
                (e.rotate, (a, ROTATIONS[j]), np.roll(x, -ROTATIONS[j]), 0),
                (e.conjugate, (a,), x.conj(), 0),
                (e.add_plain, (a, 0.5), x + 0.5, 0),
                (e.negate, (a,), -x, 0),
            )[kind]
            if np.abs(wanted).max() > 8.0:
                continue
            held[i], clear[i], levels[i] = step(*operands), wanted, low - spent
            assert e.level(held[i]) == levels[i]
        for value, wanted in zip(held, clear, strict=True):
            assert bits(pair.get(value), wanted) >= min(self.level_bits - 10, 25.0)
