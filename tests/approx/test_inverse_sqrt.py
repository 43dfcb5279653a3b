# SPDX-License-Identifier: Apache-2.0
"""The inverse square root: Remez seeds, Newton's iteration, joint counts and chords against tables in 40 digits."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heatfhe.approx import (
    ChordSeed,
    InverseSqrtFit,
    RationalSeed,
    ReciprocalFit,
    chord_inverse_sqrt,
    divide,
    fit_inverse_sqrt,
    fit_rational_seed,
    inverse_sqrt,
    reciprocal,
)
from heatfhe.errors import ConfigError
from heatfhe.files import plain, remade
from tests.approx.steps import newton_step
from tests.approx.values import Traced

# kappa: p0, p1, p2, p3, c on [1, kappa]
SEEDS = {
    2.0: (7.4186897470e-01, 5.2456379839e-01, -7.3076888198e-02, 7.1649017179e-03, 2.0052331359e-01),
    4.0: (8.7742444534e-01, 4.3849204881e-01, -4.1276305900e-02, 2.6224793536e-03, 2.7734503440e-01),
    10.0: (1.0900229712e00, 3.4344133288e-01, -1.8362407857e-02, 6.0830682506e-04, 4.1675725059e-01),
    100.0: (1.8508486835e00, 1.7661659859e-01, -1.8147491562e-03, 8.9012316384e-06, 1.0583324620e00),
    1e3: (3.1215793916e00, 8.3083555669e-02, -1.2717094980e-04, 7.4947026236e-08, 2.4529805114e00),
    1e4: (5.2558710048e00, 3.5876464292e-02, -6.9888014160e-06, 4.5239859420e-10, 5.4123176919e00),
    1e5: (8.7613403603e00, 1.4409180664e-02, -3.2569494478e-07, 2.2208365036e-12, 1.1675478043e01),
    1e6: (1.4333647828e01, 5.4525020799e-03, -1.3535536037e-08, 9.5167046475e-15, 2.4975133422e01),
}
# kappa: fit error, kappa of the denominator, Goldschmidt to it (plain, relaxed), range of the quotient,
# Newton to 1e-1..1e-4, levels at 1e-4 (Newton at 2, at 3), minimax chord's counts, Newton-optimal chord's counts
ROWS: dict[float, tuple[Any, ...]] = {
    2.0: (2.1049e-06, 1.833, (3, 2), (1.0, 1.0), (0, 0, 0, 0), (6, 6), (0, 1, 1, 2), (0, 1, 1, 2)),
    4.0: (6.4483e-05, 3.349, (3, 3), (0.99993, 1.00006), (0, 0, 0, 0), (6, 6), (0, 2, 2, 3), (0, 2, 2, 3)),
    10.0: (7.3905e-04, 7.353, (4, 3), (0.99926, 1.00074), (0, 0, 0, 1), (9, 10), (1, 2, 3, 4), (1, 2, 3, 3)),
    100.0: (1.5874e-02, 49.1, (5, 4), (0.97762, 1.01587), (0, 1, 1, 2), (12, 14), (5, 6, 7, 7), (4, 5, 5, 6)),
    1e3: (7.1951e-02, 290.3, (7, 4), (0.90012, 1.07195), (0, 2, 2, 3), (16, 19), None, (6, 7, 8, 8)),
    1e4: (1.7475e-01, 1560.0, (9, 5), (0.76527, 1.17475), (1, 2, 3, 4), (20, 24), None, (9, 10, 11, 11)),
    1e5: (3.0766e-01, 7890.0, (11, 6), (0.60550, 1.30766), (2, 3, 4, 4), (22, 26), None, (12, 13, 13, 14)),
    1e6: (4.4797e-01, 3.85e4, (12, 7), (0.31634, 1.44797), (4, 5, 6, 6), (27, 33), None, (15, 16, 16, 17)),
}
# kappa: (goldschmidt, newton) and levels at 1e-1..1e-4, Newton at 3 levels
JOINT = {
    2.0: (((1, 0), 4), ((1, 0), 4), ((2, 0), 5), ((2, 0), 5)),
    4.0: (((1, 0), 4), ((2, 0), 5), ((2, 0), 5), ((3, 0), 6)),
    10.0: (((2, 0), 5), ((3, 0), 6), ((4, 0), 7), ((3, 1), 9)),
    100.0: (((4, 0), 7), ((5, 1), 11), ((5, 1), 11), ((5, 2), 14)),
    1e3: (((7, 0), 10), ((8, 1), 14), ((7, 2), 16), ((8, 2), 17)),
    1e4: (((9, 1), 15), ((9, 2), 18), ((9, 3), 21), ((10, 3), 22)),
    1e5: (((11, 2), 20), ((11, 3), 23), ((11, 4), 26), ((11, 4), 26)),
    1e6: (((13, 3), 25), ((13, 4), 28), ((13, 5), 31), ((13, 5), 31)),
}
# the same in the partial form, with A (z^2), B (z), C and D of D / (z + c)
PARTIAL = {
    2.0: ((7.1649e-03, -7.4514e-02, 5.3951e-01, 0.633686), ((1, 0), 3), ((1, 0), 3), ((2, 0), 4), ((2, 0), 4)),
    4.0: ((2.6225e-03, -4.2004e-02, 4.5014e-01, 0.75258), ((1, 0), 3), ((2, 0), 4), ((2, 0), 4), ((3, 0), 5)),
    10.0: ((6.0831e-04, -1.8616e-02, 3.5120e-01, 0.943658), ((2, 0), 4), ((3, 0), 5), ((4, 0), 6), ((3, 1), 8)),
    100.0: ((8.9012e-06, -1.8242e-03, 1.7855e-01, 1.66189), ((4, 0), 6), ((4, 1), 9), ((5, 1), 10), ((5, 2), 13)),
    1e3: ((7.4947e-08, -1.2735e-04, 8.3396e-02, 2.91701), ((7, 0), 9), ((8, 1), 13), ((7, 2), 15), ((8, 2), 16)),
    1e4: ((4.5240e-10, -6.9912e-06, 3.5914e-02, 5.06149), ((9, 1), 14), ((9, 2), 17), ((9, 3), 20), ((9, 3), 20)),
    1e5: ((2.2208e-12, -3.2572e-07, 1.4413e-02, 8.59306), ((11, 2), 19), ((11, 3), 22), ((11, 4), 25), ((11, 4), 25)),
    1e6: ((9.5167e-15, -1.3536e-08, 5.4528e-03, 14.1975), ((13, 3), 24), ((13, 4), 27), ((13, 5), 30), ((13, 5), 30)),
}
# kappa: count: sqrt(z) * quotient, Newton to 1e-1..1e-4, levels at 1e-4 (Newton at 2, at 3)
TRADE: dict[float, dict[int, tuple[Any, ...]]] = {
    100.0: {
        1: (0.2649, 0.9957, (4, 6, 6, 7), (18, 25)),
        2: (0.4586, 1.0024, (3, 4, 5, 5), (15, 20)),
        3: (0.7035, 1.0111, (2, 3, 3, 4), (14, 18)),
        4: (0.9041, 1.0153, (0, 2, 2, 3), (13, 16)),
        5: (0.9776, 1.0159, (0, 1, 1, 2), (12, 14)),
        6: (0.9841, 1.0159, (0, 1, 1, 2), (13, 15)),
        7: (0.9841, 1.0159, (0, 1, 1, 2), (14, 16)),
        8: (0.9841, 1.0159, (0, 1, 1, 2), (15, 17)),
        9: (0.9841, 1.0159, (0, 1, 1, 2), (16, 18)),
        10: (0.9841, 1.0159, (0, 1, 1, 2), (17, 19)),
        11: (0.9841, 1.0159, (0, 1, 1, 2), (18, 20)),
    },
    1e3: {
        1: (0.0494, 1.0439, (9, 10, 10, 11), (26, 37)),
        2: (0.0962, 1.0600, (7, 8, 9, 9), (23, 32)),
        3: (0.1825, 1.0703, (5, 6, 7, 8), (22, 30)),
        4: (0.3291, 1.0719, (4, 5, 6, 6), (19, 25)),
        5: (0.5415, 1.0720, (2, 4, 4, 5), (18, 23)),
        6: (0.7670, 1.0720, (1, 2, 3, 4), (17, 21)),
        7: (0.9001, 1.0720, (0, 2, 2, 3), (16, 19)),
        8: (0.9272, 1.0720, (0, 1, 2, 2), (15, 17)),
        9: (0.9280, 1.0720, (0, 1, 2, 2), (16, 18)),
        10: (0.9280, 1.0720, (0, 1, 2, 2), (17, 19)),
        11: (0.9280, 1.0720, (0, 1, 2, 2), (18, 20)),
    },
    1e4: {
        1: (0.0084, 1.1557, (13, 14, 15, 15), (34, 49)),
        2: (0.0167, 1.1703, (11, 12, 13, 13), (31, 44)),
        3: (0.0331, 1.1747, (10, 11, 11, 12), (30, 42)),
        4: (0.0649, 1.1748, (8, 9, 10, 10), (27, 37)),
        5: (0.1247, 1.1748, (6, 7, 8, 9), (26, 35)),
        6: (0.2306, 1.1748, (5, 6, 7, 7), (23, 30)),
        7: (0.3968, 1.1748, (3, 4, 5, 6), (22, 28)),
        8: (0.6028, 1.1748, (2, 3, 4, 4), (19, 23)),
        9: (0.7653, 1.1748, (1, 2, 3, 4), (20, 24)),
        10: (0.8209, 1.1748, (1, 2, 3, 3), (19, 22)),
        11: (0.8252, 1.1748, (1, 2, 3, 3), (20, 23)),
    },
}
NEWTON = {  # e_0: e_1 .. e_4 with y sqrt(z) = 1 - e
    0.9: (8.505000e-01, 7.774207e-01, 6.716445e-01, 5.251679e-01),
    0.5: (3.125000e-01, 1.312256e-01, 2.470037e-02, 9.076274e-04),
    0.2: (5.600000e-02, 4.616192e-03, 3.191466e-05, 1.527802e-09),
    0.1: (1.450000e-02, 3.138507e-04, 1.477379e-07, 3.286260e-14),
    0.01: (1.495000e-04, 3.352370e-08, 1.554312e-15, 0.000000e00),
    -0.1: (1.550000e-02, 3.585131e-04, 1.927744e-07, 5.584422e-14),
    -0.5: (4.375000e-01, 2.452393e-01, 8.283881e-02, 1.000917e-02),
    -0.7: (9.065000e-01, 8.601587e-01, 7.916054e-01, 6.919332e-01),
    -0.732: (9.998476e-01, 9.997714e-01, 9.996571e-01, 9.994856e-01),
    -0.74: (1.024012e00, 1.036011e00, 1.053993e00, 1.080911e00),
}


@pytest.mark.parametrize("kappa", SEEDS)
def test_rational_seed_matches_the_table_and_equioscillates(kappa: float) -> None:
    seed = fit_rational_seed(1.0, kappa)
    assert (*seed.p, seed.c) == pytest.approx(SEEDS[kappa], rel=3e-6)
    t = np.geomspace(1.0, kappa, 100001)
    error = np.sqrt(t) * np.polynomial.polynomial.polyval(t, seed.p) / (t + seed.c) - 1.0
    assert np.abs(error).max() <= seed.error * (1 + 1e-5) + 1e-12
    edges = np.flatnonzero(np.diff(np.sign(error)))
    pieces = np.split(np.abs(error), edges + 1)
    assert len(pieces) == 6
    assert min(p.max() for p in pieces) >= seed.error * (1 - 1e-4)
    assert error[0] < 0 < error[-1]
    assert seed.c > 0
    assert min(seed.p[0], seed.p[1], seed.p[3]) > 0 > seed.p[2]


@pytest.mark.parametrize("kappa", ROWS)
def test_rule_counts_and_chords_match_the_table(kappa: float) -> None:
    error, kappa_q, counts, quotient, newton, levels, minimax, optimal = ROWS[kappa]
    fit = fit_inverse_sqrt(1.0, kappa)
    assert fit.seed.error == pytest.approx(error, rel=1e-4)
    assert fit.denominator.hi / fit.denominator.lo == pytest.approx(kappa_q, rel=1e-3)
    relaxed = ReciprocalFit(lo=fit.denominator.lo, hi=fit.denominator.hi, solver="relaxed")
    assert (fit.denominator.smallest_count(error, 1), relaxed.smallest_count(error, 1)) == counts
    assert fit.seed_range(counts[0]) == pytest.approx(quotient, abs=6e-6)
    found = tuple(fit.smallest_newton_count(10.0**-k, counts[0]) for k in (1, 2, 3, 4))
    assert found == newton
    assert (fit.levels(counts[0], found[3], 2), fit.levels(counts[0], found[3], 3)) == levels
    for kind, expected in (("minimax", minimax), ("newton", optimal)):
        chord = ChordSeed(lo=1.0, hi=kappa, kind=kind)
        if expected is None:
            assert math.isinf(chord_error(chord, 3))
        else:
            assert tuple(_first(lambda n, c=chord: chord_error(c, n), 10.0**-k) for k in (1, 2, 3, 4)) == expected


def chord_error(seed: ChordSeed, count: int) -> float:
    """Largest |1 - y sqrt(z)| after so many of Newton's iterations from a chord; inf where they diverge."""
    if seed.low <= 0.0 or seed.high >= math.sqrt(3.0):
        return math.inf
    u = np.linspace(seed.low, seed.high, 100_001)
    for _ in range(count):
        u = u * (3.0 - u * u) / 2.0
    return float(np.abs(1.0 - u).max())


def _first(error: Any, tolerance: float) -> int:
    return next(n for n in range(40) if error(n) <= tolerance)


@pytest.mark.parametrize("kappa", JOINT)
def test_joint_counts_match_both_tables(kappa: float) -> None:
    quotient, partial = fit_inverse_sqrt(1.0, kappa), fit_inverse_sqrt(1.0, kappa, form="partial")
    constants, *rows = PARTIAL[kappa]
    a0, a1, a2, rest = partial.seed.partial
    assert (a2, a1, a0, rest) == pytest.approx(constants, rel=1e-4)
    for fit, table in ((quotient, JOINT[kappa]), (partial, rows)):
        for k, (counts, levels) in enumerate(table, start=1):
            found = fit.smallest_counts(10.0**-k, newton_levels=3)
            assert (found, fit.levels(*found, 3)) == (counts, levels)


@pytest.mark.parametrize("kappa", TRADE)
def test_trade_of_goldschmidt_against_newton(kappa: float) -> None:
    fit = fit_inverse_sqrt(1.0, kappa)
    for count, (low, high, newton, levels) in TRADE[kappa].items():
        assert fit.seed_range(count) == pytest.approx((low, high), abs=6e-5)
        assert tuple(fit.smallest_newton_count(10.0**-k, count) for k in (1, 2, 3, 4)) == newton
        assert (fit.levels(count, newton[3], 2), fit.levels(count, newton[3], 3)) == levels


@pytest.mark.parametrize("start", NEWTON)
@pytest.mark.parametrize("levels", [2, 3])
def test_newton_follows_its_error_map_exactly(start: float, levels: int) -> None:
    z, gain = 3.7, 2.5
    y, e = gain * (1.0 - start) / math.sqrt(z), start
    for expected in NEWTON[start]:
        y = newton_step(z, y, gain, levels)
        e = e * e * (3.0 - e) / 2.0
        assert 1.0 - y * math.sqrt(z) / gain == pytest.approx(e, rel=1e-6, abs=1e-14)
        assert e == pytest.approx(expected, rel=1e-6, abs=2e-15)


@settings(max_examples=80, deadline=None)
@given(
    lo=st.floats(1e-3, 1e4),
    log_kappa=st.floats(0.02, 6.0),
    where=st.floats(0.0, 1.0),
    tolerance=st.sampled_from([1e-1, 1e-2, 1e-3, 1e-4]),
    form=st.sampled_from(["quotient", "partial"]),
    solver=st.sampled_from(["plain", "relaxed"]),
    newton_levels=st.sampled_from([2, 3]),
    gain=st.floats(0.1, 30.0),
)
def test_chosen_counts_meet_their_tolerance(
    lo: float, log_kappa: float, where: float, tolerance: float, form: str, solver: str, newton_levels: int, gain: float
) -> None:
    fit = fit_inverse_sqrt(lo, lo * 10.0 ** round(log_kappa, 2) * 1.05, form=form, solver=solver)
    counts = fit.smallest_counts(tolerance, newton_levels=newton_levels)
    z = fit.lo * (fit.hi / fit.lo) ** where
    y = inverse_sqrt(z, fit, *counts, gain=gain, newton_levels=newton_levels)
    assert abs(1.0 - y * math.sqrt(z) / gain) <= tolerance * (1 + 1e-4) + 1e-12


def test_solvers_can_be_replaced_without_changing_the_formula() -> None:
    z = np.geomspace(0.5, 80.0, 301)
    for form in ("quotient", "partial"):
        fit = fit_inverse_sqrt(0.5, 80.0, form=form)

        def solve(n: Any, q: Any, fit: InverseSqrtFit = fit) -> Any:
            if isinstance(n, float):
                return reciprocal(q, fit.denominator, 5, gain=n)
            return divide(n, q, fit.denominator, 5)

        def polish(z: Any, y: Any) -> Any:
            return newton_step(z, newton_step(z, y, 3.0, 2), 3.0, 2)

        plain = inverse_sqrt(z, fit, 5, 2, gain=3.0)
        np.testing.assert_allclose(inverse_sqrt(z, fit, 0, 0, gain=3.0, solve=solve, polish=polish), plain, rtol=1e-14)


def test_the_seed_scales_with_its_domain() -> None:
    unit, far = fit_rational_seed(1.0, 250.0), fit_rational_seed(768.0, 768.0 * 250.0)
    z = np.geomspace(1.0, 250.0, 11)
    value = [np.polynomial.polynomial.polyval(v, s.p) / (v + s.c) for s, v in ((unit, z), (far, 768.0 * z))]
    np.testing.assert_allclose(value[1], value[0] / math.sqrt(768.0), rtol=1e-9)
    assert far.c == pytest.approx(768.0 * unit.c, rel=1e-9)
    np.testing.assert_allclose(fit_inverse_sqrt(1.0, 250.0).scaled(768.0).seed.p, far.p, rtol=1e-9)


def _largest(form: str) -> float:
    seen: list[float] = []

    class Watched(Traced):
        def __mul__(self, other: Any) -> Traced:
            made = super().__mul__(other)
            seen.append(float(np.abs(made.value).max()))
            return Watched(made.value, made.spent, made.tally)

    inverse_sqrt(Watched(np.geomspace(10.0, 1e5, 50)), fit_inverse_sqrt(10.0, 1e5, form=form), 9, 3)
    return max(seen)


def test_partial_form_never_holds_the_square_of_its_input() -> None:
    assert _largest("partial") <= 1e5
    assert _largest("quotient") == pytest.approx(1e10)


def test_chords() -> None:
    for kappa, top in ((2.0, 1.045532), (4.0, 1.188075), (10.0, 1.558536), (100.0, 4.092040)):
        chord = ChordSeed(lo=3.0, hi=3.0 * kappa, kind="ends")
        assert chord.top == pytest.approx(top, rel=1e-6)
        z = np.geomspace(3.0, 3.0 * kappa, 20001)
        u = np.sqrt(z) * chord_inverse_sqrt(z, chord, 0)
        assert (u.min(), u.max()) == pytest.approx((1.0, top), rel=1e-6)
    assert ChordSeed(lo=1.0, hi=7.4641, kind="ends").high == pytest.approx(math.sqrt(2), rel=1e-4)
    assert ChordSeed(lo=1.0, hi=13.4090, kind="ends").high == pytest.approx(math.sqrt(3), rel=1e-4)
    assert ChordSeed(lo=1.0, hi=262.82, kind="minimax").high == pytest.approx(math.sqrt(3), rel=1e-4)
    for kappa in (1.5, 1e3, 1e8):
        chord = ChordSeed(lo=1.0, hi=kappa)
        assert chord.high < math.sqrt(3)
        after = [u * (3 - u * u) / 2 for u in (chord.low, chord.high)]
        assert after[0] == pytest.approx(after[1], rel=1e-6, abs=1e-7)


def test_remez_is_quick_on_wide_domains() -> None:
    fit_rational_seed.cache_clear()
    start = time.process_time()
    for kappa in (3.3, 57.0, 8.1e3, 9.7e5):
        fit_rational_seed(0.01, 0.01 * kappa)
    assert time.process_time() - start < 4.0


@pytest.mark.parametrize(("lo", "hi"), [(0.0, 1.0), (1.0, 1.0), (-1.0, 2.0), (float("nan"), 1.0), (1.0, float("inf"))])
def test_bad_domains_are_refused(lo: float, hi: float) -> None:
    for make in (fit_rational_seed, fit_inverse_sqrt):
        with pytest.raises(ConfigError, match="domain"):
            make(lo, hi)
    with pytest.raises(ConfigError, match="domain"):
        ChordSeed(lo=lo, hi=hi)


def test_other_refusals() -> None:
    seed = fit_rational_seed(1.0, 10.0)
    with pytest.raises(ConfigError, match="over 1e9"):
        fit_rational_seed(1e-6, 1e6)
    with pytest.raises(ConfigError, match="form must be one of"):
        InverseSqrtFit(lo=1.0, hi=10.0, seed=seed, form="series")
    with pytest.raises(ConfigError, match="pole"):
        RationalSeed(p=seed.p, c=-1.5, lo=1.0, hi=10.0, error=0.1)
    with pytest.raises(ConfigError, match="levels of a Newton iteration"):
        newton_step(1.0, 1.0, 1.0, 4)
    with pytest.raises(ConfigError, match="does not reach"):
        fit_inverse_sqrt(1.0, 1e6).smallest_newton_count(1e-13, 0)


def test_json_round_trip() -> None:
    fit = fit_inverse_sqrt(0.3, 91.0, solver="relaxed", form="partial")
    assert remade(InverseSqrtFit, plain(fit)) == fit
    chord = ChordSeed(lo=0.3, hi=91.0, kind="minimax")
    assert remade(ChordSeed, plain(chord)) == chord
