# SPDX-License-Identifier: Apache-2.0
"""The report's figures: each a picture as SVG, what it says in words, and its data as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from heatfhe.report.gather import CircuitFacts, PlanFacts, TrainingFacts, telling_sites
from heatfhe.report.svg import SERIES, Axis, Drawing, chart_lines, number

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
            d.rect(190, y, across(value) - 190, thick - 2, f"fill s{i % SERIES}")
            d.text(across(value) + 6, y + thick - 4, str(value))
            y += thick
        y += 14
    d.legend([c.name for c in circuits], 190, height - 8)
    words = "; ".join(f"{c.name}: {sum(c.iterations().values())} iterations per token" for c in circuits)
    return Figure(
        key="iterations",
        caption="Solver iterations per token, by family",
        words=words,
        svg=d.render("iterations", "Solver iterations per token, by family", words),
        headers=("family", *(c.name for c in circuits)),
        rows=(*(tuple(r) for r in rows), totals),
    )


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
                d.rect(x, up(count), wide - 1, y + tall - up(count), f"fill s{i % SERIES}")
            if len(sites) <= 16:
                d.text(66 + column * room, y + tall + 14, site.rpartition("/")[0], kind="small")
        y += tall + gap
    d.legend([c.name for c in circuits], 60, y - 12)
    words = "Columns are sites from the first layer to the last; height is the count. " + "; ".join(
        f"{c.name} spends {c.levels} levels on iterations" for c in circuits
    )
    every = circuits[0].sites
    return Figure(
        key="depth-map",
        caption="Depth map: the count of every site, first layer to last",
        words=words,
        svg=d.render("depth-map", "Depth map", words),
        headers=("site", *(c.name for c in circuits)),
        rows=tuple((s.site, *(found.get(s.site, "absent") for found in counts)) for s in every),
    )


def distributions(run: TrainingFacts, number_of_run: int) -> list[Figure]:
    """How a site's distribution over counts moved during training: the most telling site of each family."""
    out = []
    for index, site in enumerate(telling_sites(run)):
        rows = [(line["step"], line["p"][site], line["modes"][site]) for line in run.distributions if site in line["p"]]
        top = max((k for _, p, _ in rows for k, v in enumerate(p) if v >= 0.005), default=1)
        d = Drawing(760, 250)
        across = Axis(lo=rows[0][0], hi=max(rows[-1][0], rows[0][0] + 1), start=70, end=730)
        up = Axis(lo=-0.5, hi=top + 0.5, start=190, end=36)
        wide = 660 / max(1, len(rows) - 1)
        tall = (190 - 36) / (top + 1)
        for step, p, _ in rows:
            for k, value in enumerate(p[: top + 1]):
                if value >= 0.005:
                    d.rect(across(step), up(k) - tall / 2, wide, tall, "fill s0", opacity=value)
        for k in range(0, top + 1, max(1, top // 6)):
            d.text(62, up(k) + 4, str(k), anchor="end")
        d.polyline([(across(s) + wide / 2, up(m)) for s, _, m in rows], "line s1")
        d.text(30, 24, "count")
        d.bottom_axis(across, 190, "update")
        d.legend(["probability (darker is more)", "most likely count"], 70, 242)
        (first, _, before), (last, _, after) = rows[0], rows[-1]
        words = f"{site} in {run.name}: most likely count {before} at update {first}, {after} at {last}"
        key = f"distribution-{number_of_run}-{index}"
        out.append(
            Figure(
                key=key,
                caption=f"{run.name}: the distribution of {site} over training",
                words=words,
                svg=d.render(key, f"Distribution of {site}", words),
                headers=("update", "most likely", *(f"p({k})" for k in range(top + 1))),
                rows=tuple((s, m, *(round(v, 3) for v in p[: top + 1])) for s, p, m in rows),
            )
        )
    return out


def training_curves(runs: Sequence[TrainingFacts]) -> list[Figure]:
    """Validation loss and iterations over updates."""
    out = []
    loss = [(r.name, [v["step"] for v in r.validations], [float(v["loss"]) for v in r.validations]) for r in runs]
    if any(xs for _, xs, _ in loss):
        words = "; ".join(f"{n}: {ys[0]:.4g} first, {ys[-1]:.4g} last" for n, _, ys in loss if ys)
        title = "Held-out loss over updates"
        svg = chart_lines("validation", title, words, loss, x_title="update", y_title="nats per token")
        rows = tuple((n, x, round(y, 4)) for n, xs, ys in loss for x, y in zip(xs, ys))
        headers = ("run", "update", "loss")
        out.append(Figure(key="validation", caption=title, words=words, svg=svg, headers=headers, rows=rows))
    counts = []
    for r in runs:
        rows_ = [(u["step"], u["iterations"]) for u in r.updates if u.get("phase") != "squeeze" and u.get("iterations")]
        if rows_:
            counts.append((r.name, [float(s) for s, _ in rows_], [float(i) for _, i in rows_]))
    if counts:
        words = "; ".join(f"{n}: {ys[0]:.0f} first, {ys[-1]:.0f} last" for n, _, ys in counts)
        title = "Iterations per forward over updates (after the squeeze)"
        svg = chart_lines("iterations-over", title, words, counts, x_title="update", y_title="iterations")
        thin = tuple((n, int(x), int(y)) for n, xs, ys in counts for i, (x, y) in enumerate(zip(xs, ys)) if i % 10 == 0)
        headers = ("run", "update", "iterations")
        out.append(Figure(key="iterations-over", caption=title, words=words, svg=svg, headers=headers, rows=thin))
    return out


def levels(plans: Sequence[PlanFacts]) -> Figure:
    """Levels left along a token's longest path; every rise is a bootstrap."""
    tall, gap = 80.0, 56.0
    d = Drawing(760, len(plans) * (tall + gap) + 36)
    y = 34.0
    longest = max((len(p.levels) for p in plans), default=1)
    rows: list[tuple[Any, ...]] = []
    words = []
    for i, made in enumerate(plans):
        top = max((level for _, level in made.levels), default=1)
        up = Axis(lo=0, hi=max(1, top), start=y + tall, end=y)
        across = Axis(lo=0, hi=max(1, longest), start=60, end=740)
        rises = sum(b > a for (_, a), (_, b) in zip(made.levels, made.levels[1:]))
        d.left_axis(up, 60, 740, f"levels left: {made.name} on {made.params.name}", count=4)
        points: list[tuple[float, float]] = []
        for x, (_, level) in enumerate(made.levels):
            points += [(across(x), up(level)), (across(x + 1), up(level))]
        d.polyline(points, f"line s{i % SERIES}")
        rows += [(made.name, x, place, level) for x, (place, level) in enumerate(made.levels)]
        words.append(f"{made.name}: {len(made.levels)} products and bootstraps on the longest path, {rises} rises")
        y += tall + gap
    d.bottom_axis(Axis(lo=0, hi=longest, start=60, end=740), y - gap + 6, "products and bootstraps on the longest path")
    title = "Levels along a token"
    return Figure(
        key="levels",
        caption=f"{title}: every rise is a bootstrap",
        words="; ".join(words),
        svg=d.render("levels", title, "; ".join(words)),
        headers=("plan", "place", "step", "level"),
        rows=tuple(rows),
    )


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
                d.rect(110, y, across(t.seconds) - 110, thick - 2, f"fill s{i % SERIES}")
                d.rect(110, y, edge - 110, thick - 2, "hatched")
                d.text(across(t.seconds) + 6, y + thick - 4, f"{number(t.seconds)} {unit}")
                rows.append((operator, plans[i].name, t.bootstraps, t.bootstrap_seconds, t.seconds))
            y += thick
        y += 12
    d.legend([*(p.name for p in plans)], 110, height - 10)
    words = "; ".join(
        f"{p.name}: {p.bootstraps} bootstraps, {number(p.seconds)} {unit} per token, of which "
        f"{number(sum(t.bootstrap_seconds for t in p.operators))} in bootstraps"
        for p in plans
    )
    prices = plans[0].prices
    caption = f"Predicted price of a token by operator, bootstraps hatched ({prices.name}: {prices.hardware})"
    return Figure(
        key="latency",
        caption=caption,
        words=words,
        svg=d.render("latency", "Price of a token by operator", words),
        headers=("operator", "plan", "bootstraps", f"bootstraps ({unit})", f"all ({unit})"),
        rows=tuple(rows),
    )


def by_position(key: str, what: str, rows: Sequence[tuple[str, dict[str, Any]]]) -> list[Figure]:
    """KL and top-1 by position of evaluations or drifts."""
    out = []
    for field, title, unit, log in BY_POSITION:
        series = []
        for name, fidelity in rows:
            values = [float("nan") if v is None else float(v) for v in fidelity.get(field) or []]
            if values:
                series.append((name, [float(i) for i in range(len(values))], values))
        if not series:
            continue
        words = "; ".join(f"{n}: {number(ys[0])} first, {number(ys[-1])} last" for n, _, ys in series)
        name_of = f"{key}-{field.partition('_')[0]}"
        caption = f"{what}: {title} by position"
        scale = None if log else (0.0, 1.0)
        picture = chart_lines(name_of, caption, words, series, x_title="position", y_title=unit, log=log, y_range=scale)
        count = max(len(ys) for _, _, ys in series)
        table = tuple((i, *(ys[i] if i < len(ys) else "" for _, _, ys in series)) for i in range(count))
        headers = ("position", *(n for n, _, _ in series))
        out.append(Figure(key=name_of, caption=caption, words=words, svg=picture, headers=headers, rows=table))
    return out
