# SPDX-License-Identifier: Apache-2.0
"""Marks a test as the numeric twin of theorems in proofs/: the same claim, checked on instances through the code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from hypothesis import settings
from hypothesis import strategies as st

F = TypeVar("F", bound=Callable[..., Any])

ROUND = 1e-12  # what float64 adds to a bound over the few dozen operations of a twin, relative to values of order one


def twin(*theorems: str) -> Callable[[F], F]:
    """`@twin("Iterators.goldschmidt_bound")`, above `@given`; test_twins.py reads the names and allows no gap."""
    assert theorems

    def mark(test: F) -> F:
        if hasattr(test, "hypothesis"):
            return settings(derandomize=True, deadline=None, max_examples=100)(test)
        return test

    return mark


@st.composite
def domains(draw: st.DrawFn, widest: float = 1e4) -> tuple[float, float]:
    """lo < hi in units from 1e-3 to 1e3, with a ratio of up to `widest`."""
    lo = 10.0 ** draw(st.floats(-3.0, 3.0))
    return lo, lo * widest ** draw(st.floats(0.01, 1.0))


shares = st.floats(0.0, 1.0)


def inside(domain: tuple[float, float], share: float) -> float:
    """The point at `share` of the way, in logarithms, from the lower to the upper end."""
    lo, hi = domain
    return min(max(lo * (hi / lo) ** share, lo), hi)
