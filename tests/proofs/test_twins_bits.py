# SPDX-License-Identifier: Apache-2.0
"""Numeric twins of proofs/Bits.v: iterations are bits, and the matched whole width."""

from __future__ import annotations

import math

from hypothesis import assume, given
from hypothesis import strategies as st

from tests.proofs.bits import effective_bits, matched_bits, quantiser_step, solver_error
from tests.proofs.twin import ROUND, shares, twin

rates = st.floats(0.05, 0.95)
scales = st.floats(1e-2, 1e2)
widths = st.floats(1e-2, 1e2)
counts = st.integers(0, 6)


def quantise(w: float, lo: float, width: float, bits: int) -> tuple[int, float]:
    """The nearest of the 2^bits levels over [lo, lo + width], saturated at both ends, as the proof defines it."""
    step = quantiser_step(bits, width)
    level = max(0, min(2**bits - 1, math.floor((w - lo) / step + 0.5)))
    return level, lo + step * level


@twin("Bits.quantizer_error")
@given(lo=st.floats(-10.0, 10.0), width=widths, share=shares, bits=st.integers(1, 16))
def test_the_quantiser_errs_by_half_a_step(lo: float, width: float, share: float, bits: int) -> None:
    w = lo + share * width
    assert abs(w - quantise(w, lo, width, bits)[1]) <= quantiser_step(bits, width) / 2.0 + ROUND * (abs(lo) + width)


@twin("Bits.quantizer_levels")
@given(lo=st.floats(-10.0, 10.0), width=widths, w=st.floats(-1e3, 1e3), bits=st.integers(1, 16))
def test_the_quantiser_has_its_levels(lo: float, width: float, w: float, bits: int) -> None:
    level, value = quantise(w, lo, width, bits)
    assert 0 <= level < 2**bits
    assert lo <= value <= lo + width + ROUND * (abs(lo) + width)


@twin("Bits.iterations_are_bits")
@given(scale=scales, rate=rates, width=widths, count=counts, off=st.floats(-0.5, 0.5))
def test_the_two_errors_meet_at_the_effective_bits_alone(
    scale: float, rate: float, width: float, count: int, off: float
) -> None:
    error = solver_error(count, scale=scale, rate=rate)
    bits = effective_bits(count, scale=scale, rate=rate, width=width)
    assume(1e-6 < bits < 900.0)
    assert bits > 0.0
    assert math.isclose(width / math.expm1(bits * math.log(2.0)) / 2.0, error, rel_tol=1e-8)
    other = bits * (1.0 + off)
    assume(abs(off) > 1e-3)
    assert not math.isclose(width / math.expm1(other * math.log(2.0)) / 2.0, error, rel_tol=1e-5)


@twin("Bits.bits_decomposition", "Bits.bits_bounds")
@given(scale=scales, rate=rates, width=widths, count=counts)
def test_the_bits_decompose(scale: float, rate: float, width: float, count: int) -> None:
    bits = effective_bits(count, scale=scale, rate=rate, width=width)
    main = 2**count * math.log2(1.0 / rate) + math.log2(width / (2.0 * scale))
    rest = 2.0 * solver_error(count, scale=scale, rate=rate) / width
    close = ROUND * (1.0 + abs(main))
    assert abs(bits - (main + math.log1p(rest) / math.log(2.0))) <= close
    assert main - close <= bits <= main + rest / math.log(2.0) + close


@twin("Bits.bits_per_power", "Bits.bits_theta")
@given(scale=scales, rate=rates, width=widths, count=st.integers(10, 40))
def test_the_bits_grow_like_a_power_of_two(scale: float, rate: float, width: float, count: int) -> None:
    slope = math.log2(1.0 / rate)
    bits = effective_bits(count, scale=scale, rate=rate, width=width)
    additive = abs(math.log2(width / (2.0 * scale))) + 2.0 * scale / (width * math.log(2.0))
    assert abs(bits / 2**count - slope) <= additive / 2**count + ROUND * slope
    assume(2**count * slope >= 2.0 * additive)           # eventually: the constants of Theta are slope/2 and 3 slope/2
    assert 0.5 * slope * 2**count <= bits <= 1.5 * slope * 2**count


@twin("Bits.bits_ratio")
@given(scale=scales, rate=rates, width=widths)
def test_an_iteration_doubles_the_bits(scale: float, rate: float, width: float) -> None:
    bits = [effective_bits(count, scale=scale, rate=rate, width=width) for count in (40, 41)]
    assert math.isclose(bits[1] / bits[0], 2.0, rel_tol=1e-6)


@st.composite
def matched(draw: st.DrawFn, largest: int = 6) -> dict[str, float]:
    """Arguments of matched_bits."""
    return {
        "count": draw(st.integers(0, largest)), "scale": draw(scales), "rate": draw(rates), "width": draw(widths),
        "slope": draw(st.floats(0.1, 10.0)), "dimension": draw(st.integers(1, 1024)),
        "activation_bound": draw(st.floats(0.1, 100.0)),
    }


def layer_error(case: dict[str, float], bits: int) -> float:
    """lambda s(b)/2 d B: what rounding the weights to `bits` can do to one activation."""
    return case["slope"] * quantiser_step(bits, case["width"]) / 2.0 * case["dimension"] * case["activation_bound"]


@twin("Bits.matched_width_bounds")
@given(case=matched())
def test_the_matched_width_is_the_ceiling(case: dict[str, float]) -> None:
    bits = matched_bits(**case)  # type: ignore[arg-type]
    width = case["slope"] * case["dimension"] * case["activation_bound"] * case["width"]
    exact = effective_bits(int(case["count"]), scale=case["scale"], rate=case["rate"], width=width)
    assert bits >= 1
    assert exact <= bits < exact + 1.0


@twin("Bits.matched_width_meets_budget", "Bits.matched_width_is_least")
@given(case=matched())
def test_the_matched_width_is_the_least_that_meets_the_budget(case: dict[str, float]) -> None:
    bits = matched_bits(**case)  # type: ignore[arg-type]
    assume(bits < 900)
    budget = solver_error(int(case["count"]), scale=case["scale"], rate=case["rate"])
    assert layer_error(case, bits) <= budget * (1.0 + 1e-9)
    if bits > 1:
        assert layer_error(case, bits - 1) > budget * (1.0 - 1e-9)


@twin("Bits.matched_width_theta")
@given(case=matched(), count=st.integers(16, 40))
def test_the_matched_width_grows_like_a_power_of_two(case: dict[str, float], count: int) -> None:
    slope = math.log2(1.0 / case["rate"])
    bits = matched_bits(**{**case, "count": count})  # type: ignore[arg-type]
    assert 0.5 * slope * 2**count <= bits <= 1.5 * slope * 2**count
