# SPDX-License-Identifier: Apache-2.0
"""The report's figures: each a picture as SVG, what it says in words, and its data as a table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from heatfhe.report.gather import CircuitFacts, PlanFacts, TrainingFacts, telling_sites
from heatfhe.report.svg import SERIES, Axis, Drawing, Series, chart_lines, number

FAMILY_WORDS = {
    "norm_goldschmidt": "norms, Goldschmidt",
    "norm_newton": "norms, Newton",
    "softmax_init": "softmax, first division",
    "softmax_refine": "softmax, refinement",
}
BY_POSITION = (
    ("kl_by_position", "KL to its own clear run", "nats", True),
    ("top1_by_position", "top-1 agreement", "share", False),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A picture, its caption, its text alternative, and its data."""

    key: str
    caption: str
    words: str
    svg: str
    headers: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


def _drawn(
    d: Drawing, key: str, caption: str, words: str, headers: Sequence[str], rows: Iterable[Any], *, title: str = ""
) -> Figure:
    """The figure of a drawing, under its caption or a title of its own."""
    svg = d.render(key, title or caption, words)
    return Figure(key=key, caption=caption, words=words, svg=svg, headers=tuple(headers), rows=tuple(rows))


def iterations(circuits: Sequence[CircuitFacts]) -> Figure:
    """Iterations per token by family, circuits side by side."""
    rows: list[tuple[Any, ...]] = [(FAMILY_WORDS[f], *(c.iterations()[f] for c in circuits)) for f in FAMILY_WORDS]
    totals = ("all", *(sum(c.iterations().values()) for c in circuits))
    top = max(1, *(v for row in rows for v in row[1:]))
    thick = 14
    height = 30 + len(rows) * (thick * len(circuits) + 14) + 34
    d = Drawing(760, height)
    across = Axis(lo=0, hi=top, start=190, end=700)
    y = 24.0
    for name, *values in rows:
        d.text(182, y + thick * len(circuits) / 2 + 4, name, anchor="end")
        for i, value in enumerate(values):
            hint = f"{name}: {value} iterations in {circuits[i].name}"
            d.rect(190, y, across(value) - 190, thick - 2, f"fill s{i % SERIES}", hint=hint)
            d.text(across(value) + 6, y + thick - 4, str(value))
            y += thick
        y += 14
    d.legend([c.name for c in circuits], 190, height - 8)
    words = "; ".join(f"{c.name}: {sum(c.iterations().values())} iterations per token" for c in circuits)
    headers = ("family", *(c.name for c in circuits))
    return _drawn(d, "iterations", "Solver iterations per token, by family", words, headers, [*rows, totals])


def depth_map(circuits: Sequence[CircuitFacts]) -> Figure:
    """The count of every site in depth order, a panel per family, circuits side by side in each column."""
    panels = [(f, [s.site for s in circuits[0].sites if s.family == f]) for f in FAMILY_WORDS]
    counts = [{s.site: s.count for s in c.sites} for c in circuits]
    tall, gap = 90.0, 50.0
    d = Drawing(760, len(panels) * (tall + gap) + 30)
    y = 34.0
    for family, sites in panels:
        top = max(1, *(c.get(s, 0) for c in counts for s in sites)) if sites else 1
        up = Axis(lo=0, hi=top, start=y + tall, end=y)
        d.left_axis(up, 60, 740, FAMILY_WORDS[family], count=min(4, top))
        room = 670 / max(1, len(sites))
        wide = min(16.0, 0.8 * room / len(circuits))
        for column, site in enumerate(sites):
            for i, found in enumerate(counts):
                count = found.get(site, 0)
                x = 66 + column * room + i * wide
                hint = f"{site}: {count} in {circuits[i].name}"
                d.rect(x, up(count), wide - 1, y + tall - up(count), f"fill s{i % SERIES}", hint=hint)
            if len(sites) <= 16:
                d.text(66 + column * room, y + tall + 14, site.rpartition("/")[0], kind="small")
        y += tall + gap
    d.legend([c.name for c in circuits], 60, y - 12)
    words = "Columns are sites from the first layer to the last; height is the count. " + "; ".join(
        f"{c.name} spends {c.solver_levels} levels on iterations" for c in circuits
    )
    headers, caption = ("site", *(c.name for c in circuits)), "Depth map: the count of every site, first layer to last"
    rows = ((s.site, *(found.get(s.site, "absent") for found in counts)) for s in circuits[0].sites)
    return _drawn(d, "depth-map", caption, words, headers, rows, title="Depth map")


def distributions(run: TrainingFacts, number_of_run: int) -> list[Figure]:
    """How distributions over counts moved during training: the most telling site of each family, a panel each."""
    sites = telling_sites(run)
    if not sites:
        return []
    tall, wide = 130.0, 300.0
    d = Drawing(760, (len(sites) + 1) // 2 * (tall + 78) + 30)
    words, rows = [], []
    for index, site in enumerate(sites):
        found = [(r["step"], r["p"][site], r["modes"][site]) for r in run.distributions if site in r["p"]]
        left, upper = 60 + (index % 2) * 375.0, 34 + (index // 2) * (tall + 78)
        top = max((k for _, p, _ in found for k, v in enumerate(p) if v >= 0.005), default=1)
        across = Axis(lo=found[0][0], hi=max(found[-1][0], found[0][0] + 1), start=left, end=left + wide)
        up = Axis(lo=-0.5, hi=top + 0.5, start=upper + tall, end=upper)
        step_wide, count_tall = wide / len(found), tall / (top + 1)
        for i, (_, p, _) in enumerate(found):
            for k, value in enumerate(p[: top + 1]):
                if value >= 0.005:
                    d.rect(
                        left + i * step_wide, up(k) - count_tall / 2, step_wide, count_tall, "fill s0", opacity=value
                    )
        for k in range(0, top + 1, max(1, top // 4)):
            d.text(left - 8, up(k) + 4, str(k), anchor="end")
        d.polyline([(left + (i + 0.5) * step_wide, up(m)) for i, (_, _, m) in enumerate(found)], "line s1 d0")
        for i, (update, p, m) in enumerate(found):
            hint = f"{site}, update {update}: {m} most likely, probability {p[m]:.2g}"
            d.spot(left + i * step_wide, upper, step_wide, tall, hint)
        d.text(left - 30, upper - 10, f"count at {site}")
        d.bottom_axis(across, upper + tall, "update")
        (first, _, before), (last, _, after) = found[0], found[-1]
        words.append(f"{site}: most likely count {before} at update {first}, {after} at {last}")
        rows += [(site, s, m, " ".join(f"{v:.2g}" for v in p)) for s, p, m in found]
    d.legend(["probability (stronger is more)", "most likely count"], 60, d.height - 10)
    key, caption = f"distribution-{number_of_run}", f"{run.name}: distributions over counts, as training moved them"
    headers = ("site", "update", "most likely", "probability of 0, 1, 2, ...")
    return [_drawn(d, key, caption, "; ".join(words), headers, rows)]


def training_curves(runs: Sequence[TrainingFacts]) -> list[Figure]:
    """Validation loss and iterations over updates."""
    out = []
    loss = [
        Series(r.name, [v["step"] for v in r.validations], [float(v["loss"]) for v in r.validations], i + 1, i)
        for i, r in enumerate(runs)
        if r.validations
    ]
    if loss:
        words = "; ".join(f"{r.name}: {r.ys[0]:.4g} first, {r.ys[-1]:.4g} last" for r in loss)
        title = "Held-out loss over updates"
        svg = chart_lines("validation", title, words, loss, x_title="update", y_title="nats per token")
        rows = tuple((r.name, x, round(y, 4)) for r in loss for x, y in zip(r.xs, r.ys))
        headers = ("run", "update", "loss")
        out.append(Figure(key="validation", caption=title, words=words, svg=svg, headers=headers, rows=rows))
    counts = []
    for i, run in enumerate(runs):
        after = [u for u in run.updates if u.get("phase") != "squeeze" and u.get("iterations")]
        if after:
            counts.append(Series(run.name, [u["step"] for u in after], [u["iterations"] for u in after], i + 1, i))
    if counts:
        words = "; ".join(f"{r.name}: {r.ys[0]:.0f} first, {r.ys[-1]:.0f} last" for r in counts)
        title = "Iterations per token over updates (after the squeeze)"
        svg = chart_lines("iterations-over", title, words, counts, x_title="update", y_title="iterations")
        thin = tuple((r.name, x, y) for r in counts for i, (x, y) in enumerate(zip(r.xs, r.ys)) if i % 10 == 0)
        headers = ("run", "update", "iterations")
        out.append(Figure(key="iterations-over", caption=title, words=words, svg=svg, headers=headers, rows=thin))
    return out


def levels(plans: Sequence[PlanFacts]) -> Figure:
    """Levels left along a token's longest path; every rise is a bootstrap."""
    tall, gap = 80.0, 56.0
    d = Drawing(760, len(plans) * (tall + gap) + 36)
    y = 34.0
    longest = max((len(p.path) for p in plans), default=1)
    rows: list[tuple[Any, ...]] = []
    words = []
    for i, made in enumerate(plans):
        top = max((level for _, level in made.path), default=1)
        up = Axis(lo=0, hi=max(1, top), start=y + tall, end=y)
        across = Axis(lo=0, hi=max(1, longest), start=60, end=740)
        rises = sum(b > a for (_, a), (_, b) in zip(made.path, made.path[1:]))
        d.left_axis(up, 60, 740, f"levels left: {made.name} on {made.params.name}", count=4)
        points: list[tuple[float, float]] = []
        for x, (_, level) in enumerate(made.path):
            points += [(across(x), up(level)), (across(x + 1), up(level))]
        if points:
            d.area(points, y + tall, f"area fill s{i % SERIES}")
        d.polyline(points, f"line thin s{i % SERIES}")
        for x, (place, level) in enumerate(made.path):
            d.spot(across(x), y, across(x + 1) - across(x), tall, f"{place}: {level} levels left")
        rows += [(made.name, x, place, level) for x, (place, level) in enumerate(made.path)]
        along = f"{len(made.path)} products and bootstraps on the longest path"
        words.append(f"{made.name}: {along}, which rises {rises} times; {made.bootstraps} bootstraps on all paths")
        y += tall + gap
    d.bottom_axis(Axis(lo=0, hi=longest, start=60, end=740), y - gap + 6, "products and bootstraps on the longest path")
    title, headers = "Levels along a token", ("plan", "place", "step", "level")
    return _drawn(d, "levels", f"{title}: every rise is a bootstrap", "; ".join(words), headers, rows, title=title)


def latency(plans: Sequence[PlanFacts]) -> Figure:
    """Predicted price of a token by operator, the bootstraps' share hatched."""
    operators = list(dict.fromkeys(t.operator for p in plans for t in p.operators))
    found = [{t.operator: t for t in p.operators} for p in plans]
    unit = plans[0].prices.unit
    top = max([t.seconds for p in plans for t in p.operators], default=1.0) or 1.0
    thick = 14
    height = 30 + len(operators) * (thick * len(plans) + 12) + 40
    d = Drawing(760, height)
    across = Axis(lo=0, hi=top, start=110, end=660)
    y = 22.0
    rows = []
    for operator in operators:
        d.text(102, y + thick * len(plans) / 2 + 4, operator, anchor="end")
        for i, tallies in enumerate(found):
            t = tallies.get(operator)
            if t is not None:
                edge = across(t.bootstrap_seconds)
                parts = f"{number(t.bootstrap_seconds)} {unit} in {t.bootstraps} bootstraps"
                hint = f"{operator}, {plans[i].name}: {number(t.seconds)} {unit}, of it {parts}"
                d.rect(110, y, across(t.seconds) - 110, thick - 2, f"fill s{i % SERIES}", hint=hint)
                d.rect(110, y, edge - 110, thick - 2, "hatched", hint=hint)
                d.text(across(t.seconds) + 6, y + thick - 4, f"{number(t.seconds)} {unit}")
                rows.append((operator, plans[i].name, t.bootstraps, t.bootstrap_seconds, t.seconds))
            y += thick
        y += 12
    d.legend([p.name for p in plans], 110, height - 10)
    words = "; ".join(
        f"{p.name}: {p.bootstraps} bootstraps, {number(p.seconds)} {unit} per token, of which "
        f"{number(sum(t.bootstrap_seconds for t in p.operators))} in bootstraps"
        for p in plans
    )
    prices = plans[0].prices
    caption = f"Predicted price of a token by operator, bootstraps hatched ({prices.name}: {prices.hardware})"
    headers = ("operator", "plan", "bootstraps", f"bootstraps ({unit})", f"all ({unit})")
    return _drawn(d, "latency", caption, words, headers, rows, title="Price of a token by operator")


def by_position(key: str, what: str, rows: Sequence[tuple[str, dict[str, Any], int, int]]) -> list[Figure]:
    """KL and top-1 by position of evaluations or drifts: (name, fidelity, colour, dash) each."""
    out = []
    for field, title, unit, log in BY_POSITION:
        series = []
        for name, fidelity, colour, dash in rows:
            values = [float("nan") if v is None else float(v) for v in fidelity.get(field) or []]
            if values:
                series.append(Series(name, [float(i) for i in range(len(values))], values, colour, dash))
        if not series:
            continue
        words = "; ".join(f"{r.name}: {number(r.ys[0])} first, {number(r.ys[-1])} last" for r in series)
        name_of = f"{key}-{field.partition('_')[0]}"
        caption = f"{what}: {title} by position"
        look: dict[str, Any] = {"log": True} if log else {"y_range": (0.0, 1.0), "height": 190}
        picture = chart_lines(name_of, caption, words, series, x_title="position", y_title=unit, **look)
        count = max(len(r.ys) for r in series)
        table = tuple((i, *(r.ys[i] if i < len(r.ys) else "" for r in series)) for i in range(count))
        headers = ("position", *(r.name for r in series))
        out.append(Figure(key=name_of, caption=caption, words=words, svg=picture, headers=headers, rows=table))
    return out


def stages(demo: dict[str, Any], number_of_demo: int) -> Figure:
    """What happened when: the stages of a demo on one line of time."""
    rows = [(str(name), float(seconds)) for name, seconds in demo["stages"]]
    total = sum(seconds for _, seconds in rows) or 1.0
    d = Drawing(760, 26 * len(rows) + 70)
    across = Axis(lo=0, hi=total, start=90, end=690)
    began = 0.0
    for i, (name, seconds) in enumerate(rows):
        y = 20 + 26 * i
        d.text(82, y + 13, name, anchor="end")
        wide = max(2.0, across(began + seconds) - across(began))
        d.rect(across(began), y, wide, 18, "fill s1", hint=f"{name}: {seconds:.1f} s")
        d.text(across(began + seconds) + 6, y + 13, f"{seconds:.1f} s")
        began += seconds
    d.bottom_axis(across, 26 * len(rows) + 24, "seconds since the start")
    words = f"{total:.0f} seconds in all, most of them in {max(rows, key=lambda r: r[1])[0]}" if rows else "no stages"
    key, caption = f"stages-{number_of_demo}", "The stages of this demo"
    return _drawn(d, key, caption, words, ("stage", "seconds"), ((n, round(s, 1)) for n, s in rows))
