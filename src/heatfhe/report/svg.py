# SPDX-License-Identifier: Apache-2.0
"""A small writer of inline SVG: axes, bars, lines and cells, coloured by CSS classes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

SERIES = 6
"""Distinct colours (classes s0 to s5) and dashes (d0 to d5) of a series."""
LEGEND_ROW = 18
HINTS = 80
"""Points of a line that show their value, about: more would make the page large."""
HATCH = (
    '<defs><pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<rect class="stripe" width="2" height="6"/></pattern></defs>'
)


def number(value: float) -> str:
    """A coordinate or a label, short."""
    return f"{value:.4g}" if math.isfinite(value) else "none"


def ticks(lo: float, hi: float, count: int = 5) -> list[float]:
    """Round numbers from lo to hi, about ``count`` of them."""
    if not hi > lo:
        return [lo]
    raw = (hi - lo) / max(1, count)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1.0, 2.0, 5.0, 10.0) if m * power >= raw * 0.999)
    first = math.ceil(lo / step - 1e-9)
    return [round((first + i) * step, 12) for i in range(math.floor(hi / step + 1e-9) - first + 1)]


def decades(lo: float, hi: float) -> list[float]:
    """Powers of ten from lo to hi, thinned to about six."""
    first, last = math.floor(math.log10(lo)), math.ceil(math.log10(hi))
    stride = max(1, math.ceil((last - first) / 6))
    return [10.0**k for k in range(first, last + 1, stride)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One direction of a plot, linear or logarithmic: ``lo`` to ``hi``, drawn from ``start`` to ``end``."""

    lo: float
    hi: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """The coordinate of a value; values beyond the axis stick to its ends."""
        lo, hi, v = self.lo, self.hi, min(max(value, self.lo), self.hi)
        if self.log:
            lo, hi, v = math.log10(lo), math.log10(hi), math.log10(v)
        share = 0.0 if hi == lo else (v - lo) / (hi - lo)
        return self.start + share * (self.end - self.start)

    def ticks(self, count: int = 5) -> list[float]:
        """Where its labels stand."""
        return decades(self.lo, self.hi) if self.log else ticks(self.lo, self.hi, count)


@dataclass(slots=True)
class Drawing:
    """Collects elements; ``render`` makes one ``<svg>`` with a title and a description for screen readers."""

    width: float
    height: float
    parts: list[str] = field(default_factory=list)

    def line(self, x1: float, y1: float, x2: float, y2: float, kind: str) -> None:
        """A straight line."""
        self.parts.append(
            f'<line class="{kind}" x1="{number(x1)}" y1="{number(y1)}" x2="{number(x2)}" y2="{number(y2)}"/>'
        )

    def rect(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        kind: str,
        *,
        opacity: float | None = None,
        hint: str = "",
    ) -> None:
        """A filled rectangle; a pointer that rests on it is shown the hint."""
        faint = "" if opacity is None else f' fill-opacity="{number(opacity)}"'
        box = f'x="{number(x)}" y="{number(y)}" width="{number(max(0.0, width))}" height="{number(max(0.0, height))}"'
        shown = f"><title>{escape(hint)}</title></rect>" if hint else "/>"
        self.parts.append(f'<rect class="{kind}" {box}{faint}{shown}')

    def spot(self, x: float, y: float, width: float, height: float, hint: str) -> None:
        """A place without a picture of its own that has a hint."""
        self.rect(x, y, width, height, "spot", hint=hint)

    def text(self, x: float, y: float, words: str, *, anchor: str = "start", kind: str = "label") -> None:
        """Words."""
        self.parts.append(
            f'<text class="{kind}" x="{number(x)}" y="{number(y)}" text-anchor="{anchor}">{escape(words)}</text>'
        )

    def area(self, points: Sequence[tuple[float, float]], floor: float, kind: str) -> None:
        """What lies between a line and the floor."""
        ends = [(points[0][0], floor), *points, (points[-1][0], floor)]
        path = " ".join(f"{number(x)},{number(y)}" for x, y in ends)
        self.parts.append(f'<polygon class="{kind}" points="{path}"/>')

    def polyline(self, points: Sequence[tuple[float, float]], kind: str) -> None:
        """A line through points, with a dot where it stands alone."""
        if len(points) == 1:
            (x, y), *_ = points
            self.parts.append(f'<circle class="{kind} dot" cx="{number(x)}" cy="{number(y)}" r="3"/>')
        elif points:
            path = " ".join(f"{number(x)},{number(y)}" for x, y in points)
            self.parts.append(f'<polyline class="{kind}" points="{path}"/>')

    def bottom_axis(self, axis: Axis, y: float, title: str) -> None:
        """Ticks and a title under a plot."""
        self.line(axis.start, y, axis.end, y, "axis")
        for value in axis.ticks():
            self.line(axis(value), y, axis(value), y + 4, "axis")
            self.text(axis(value), y + 16, number(value), anchor="middle")
        self.text((axis.start + axis.end) / 2, y + 34, title, anchor="middle")

    def left_axis(self, axis: Axis, x: float, right: float, title: str, *, count: int = 5) -> None:
        """Ticks, grid and a title left of a plot; the title stands above the axis, level, so that it can be read."""
        self.line(x, axis.start, x, axis.end, "axis")
        for value in axis.ticks(count):
            self.line(x, axis(value), right, axis(value), "grid")
            self.text(x - 6, axis(value) + 4, number(value), anchor="end")
        self.text(x - 40, min(axis.start, axis.end) - 10, title)

    def legend(self, names: Sequence[str], x: float, y: float, *, lines: Sequence[str] = ()) -> None:
        """A sample and the name of every series, wrapped into rows; ``lines`` gives kinds where samples are lines."""
        for i, (name, row, left) in enumerate(legend_places(names, self.width - x - 20)):
            down = y + row * LEGEND_ROW
            if lines:
                self.line(x + left, down - 4, x + left + 26, down - 4, lines[i])
            else:
                self.rect(x + left, down - 9, 14, 10, f"fill s{i % SERIES}")
            self.text(x + left + (32 if lines else 19), down, name)

    def render(self, key: str, title: str, words: str) -> str:
        """The element; ``key`` is unique on its page."""
        return (
            f'<svg viewBox="0 0 {number(self.width)} {number(self.height)}" role="img" '
            f'aria-labelledby="{key}-title {key}-desc"><title id="{key}-title">{escape(title)}</title>'
            f'<desc id="{key}-desc">{escape(words)}</desc>{HATCH}{"".join(self.parts)}</svg>'
        )


def legend_places(names: Sequence[str], width: float) -> list[tuple[str, int, float]]:
    """(name, row, distance from the left) of every series of a legend."""
    out, row, x = [], 0, 0.0
    for name in names:
        need = 52 + 6.6 * len(name)
        if x and x + need > width:
            row, x = row + 1, 0.0
        out.append((name, row, x))
        x += need
    return out


@dataclass(frozen=True, slots=True)
class Series:
    """Points to be joined by a line, and how it looks."""

    name: str
    xs: Sequence[float]
    ys: Sequence[float]
    colour: int = 0
    dash: int = 0

    @property
    def kind(self) -> str:
        """Classes of its line."""
        return f"line s{self.colour % SERIES} d{self.dash % SERIES}"


def chart_lines(
    key: str,
    title: str,
    words: str,
    series: Sequence[Series],
    *,
    x_title: str,
    y_title: str,
    log: bool = False,
    y_range: tuple[float, float] | None = None,
    height: float = 260,
) -> str:
    """Lines over a shared pair of axes; points that do not exist (nan, or not positive on a log axis) are left out."""
    kept = [(r, [(x, y) for x, y in zip(r.xs, r.ys) if math.isfinite(y) and (y > 0 or not log)]) for r in series]
    points = [p for _, row in kept for p in row]
    lo, hi = y_range or _span([y for _, y in points], log)
    places = [x for x, _ in points]
    across = Axis(lo=min(places, default=0), hi=max(places, default=1), start=70, end=740)
    up = Axis(lo=lo, hi=hi, start=height - 60, end=46, log=log)
    names = [r.name for r in series]
    rows = 1 + max((row for _, row, _ in legend_places(names, 670)), default=0)
    d = Drawing(760, height + LEGEND_ROW * (rows - 1) + 6)
    d.left_axis(up, 70, 740, y_title, count=5 if height > 200 else 2)
    d.bottom_axis(across, height - 60, x_title)
    for r, row in kept:
        d.polyline([(across(x), up(y)) for x, y in row], r.kind)
        for x, y in row[:: max(1, len(row) // HINTS)]:
            d.spot(across(x) - 5, up(y) - 5, 10, 10, f"{r.name}, {x_title} {number(x)}: {number(y)} {y_title}")
    d.legend(names, 70, height - 6, lines=[r.kind for r in series])
    return d.render(key, title, words)


def _span(values: Sequence[float], log: bool) -> tuple[float, float]:
    if not values:
        return (0.1, 1.0) if log else (0.0, 1.0)
    lo, hi = min(values), max(values)
    if log:
        return 10.0 ** math.floor(math.log10(lo)), 10.0 ** math.ceil(math.log10(hi) + 1e-9) * (10 if lo == hi else 1)
    room = 0.05 * (hi - lo) or 0.5
    return (lo - room if lo < 0 or lo > 0.5 * hi else 0.0), hi + room
