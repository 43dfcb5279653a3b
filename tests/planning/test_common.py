# SPDX-License-Identifier: Apache-2.0
"""What noise on a first reciprocal's numerator counts: a factor of its row, which the second reciprocal divides out."""

from __future__ import annotations

import math

import numpy as np
import pytest

from heatfhe.approx import reciprocal
from heatfhe.assets import default_circuit
from heatfhe.circuit import Circuit
from heatfhe.planning.pack import Packing
from heatfhe.planning.programs.attention import COMMON, SURE, TOKENS, common
from heatfhe.planning.programs.decoder import record
from heatfhe.planning.recorder import Recorder
from heatfhe.records import SoftmaxCalibration
from tests.tiny import wide_circuit


@pytest.fixture(scope="module")
def circuit() -> Circuit:
    return Circuit.load(default_circuit("calibrated"))


@pytest.mark.parametrize("terms", [1, 32, 128])
def test_a_factor_that_counts_less_leaves_no_domain(circuit: Circuit, terms: int) -> None:
    """Rows of all kinds: flat, peaked, loud and quiet; the largest noise that TOKENS bits let through, SURE times."""
    rng, seen = np.random.default_rng(0), 0
    for c in circuit.calibration.softmaxes.values():
        half = c.fit.width / (2 * c.fit.delta_2)
        low, top = np.sort(rng.uniform(-half, half, (2, 4000, 1)), axis=0)
        rows = np.exp(np.where(rng.random((4000, terms)) < rng.random((4000, 1)), top, low))
        rows[::4] = np.exp(np.where(np.arange(terms) == 0, top[::4], low[::4]))  # one entry alone
        mean = rows.mean(axis=1)
        squares = (rows**2).mean(axis=1) / mean**2
        kept = (c.fit.init.lo <= mean) & (mean <= c.fit.init.hi) & (squares <= c.met(1)[0].hi)
        part = common(c, mean, terms)
        assert (part <= COMMON).all()
        noise = SURE * 2.0**-TOKENS / part
        less = kept & (part < COMMON)
        seen += int(less.sum())
        assert (noise[less] <= 1 + 1e-12).all()
        assert ((1 + noise[less]) ** 2 * squares[less] <= (c.met(1)[0].lo + c.met(1)[0].hi) * (1 + 1e-9)).all()
    assert seen > 500


def test_only_flat_rows_are_let_off(circuit: Circuit) -> None:
    c = circuit.calibration.softmaxes["h.2.attn"]
    loudest = math.exp(c.fit.width / (2 * c.fit.delta_2))
    flat, peaked = (float(common(c, np.array([loudest / q]), 128)[0]) for q in (1.0, 120.0))
    assert (flat, peaked) == (pytest.approx(6 / 256), COMMON)
    assert float(common(c, np.array([loudest / 120]), 32)[0]) == pytest.approx(6 / 256, rel=0.01)  # 32 squares at most


def test_noise_on_numerators_is_a_factor_of_the_result(circuit: Circuit) -> None:
    """A numerator counts beside its own size, at every iteration; a denominator and a seed by what they change."""
    c: SoftmaxCalibration = circuit.calibration.softmaxes["h.0.attn"]
    r = Recorder(slots=8, rows=4)
    s = r.domain(r.input("s", period=1, bound=1.0), c.fit.init.lo, c.fit.init.hi)
    y = r.weigh(reciprocal(s, c.fit.init, 6, gain=0.5), part=COMMON)
    before = [f.least for f in r.facts]
    r.weigh_factors(y, np.full((2, 1), COMMON / 4))
    changed = [i for i, f in enumerate(r.facts) if f.least != before[i]]
    assert len(changed) == 6  # one for each iteration
    for i in changed:
        assert r.facts[i].least == pytest.approx(4 * before[i])
        assert r.facts[i].least == pytest.approx(float(np.abs(r.facts[i].samples).min()) * 4 / COMMON)


def test_copies_of_a_larger_ring_are_not_one_factor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums over windows of a layout, as they are taken in a ring that repeats it: one number only if it fills the ring.

    Noise in such a numerator alone left 17 bits of the logits of ``wide_circuit`` on 1024 slots, and 36 where a later
    refresh took the mean of all repetitions first.
    """
    wide, asked = wide_circuit(), []
    monkeypatch.setattr(Recorder, "weigh_factors", lambda r, value, part: asked.append(r.slots))
    n = Packing(wide.shape, 1024, wide.room).n
    assert n == 128
    for slots in (n, 2 * n, 8 * n):
        record(wide, Packing(wide.shape, slots, wide.room), "logits", reach=16.0, tight=True)
        noise = np.random.default_rng(0).standard_normal(slots // 2)  # of one head
        sums = sum(np.roll(noise, -k) for k in range(n // 2))
        assert bool(np.ptp(sums) < 1e-9) is (slots == n)
    assert len(asked) == 1
