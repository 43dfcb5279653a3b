# SPDX-License-Identifier: Apache-2.0
"""Parts of a plan as text: the operators' shares as bars, levels as characters."""

from __future__ import annotations

from heatfhe.planning.tally import OperatorTally

BAR = 48


def bars(found: dict[str, OperatorTally], unit: str = "s") -> list[str]:
    """Seconds per operator as bars, the bootstraps' share hatched."""
    largest = max((t.seconds for t in found.values()), default=0.0) or 1.0
    out = []
    for t in found.values():
        whole = round(BAR * t.seconds / largest)
        hatched = round(BAR * t.bootstrap_seconds / largest)
        bar = "/" * hatched + "#" * (whole - hatched)
        out.append(f"{t.operator:<10s} {bar:<{BAR}s} {t.seconds:.3g} {unit}")
    return out


def levels(found: list[tuple[str, int]]) -> str:
    """Levels as one character each, place by place."""
    out: list[str] = []
    last = None
    for name, level in found:
        if name != last:
            out.append(" " if last is not None else "")
        out.append("0123456789abcdefghijklmnopqrstuvwxyz"[min(level, 35)])
        last = name
    return "".join(out)
