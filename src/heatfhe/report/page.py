# SPDX-License-Identifier: Apache-2.0
"""The report as one HTML file: no network, no script; figures with text alternatives and their data as tables."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from heatfhe.report import charts, quality
from heatfhe.report.charts import Figure
from heatfhe.report.gather import Material
from heatfhe.report.style import CSS
from heatfhe.report.words import GLOSSARY

PER_TOKEN = (
    "Levels and bootstraps are those of one generated token, counted in its plan; other tables say what they count."
)
ASKED_FOR = ("command", "commit of heatfhe", "model", "seed", "corpus", "windows, held out", "sha256 of the windows")
"""Settings shown before the recipe's numbers."""


@dataclass(frozen=True, slots=True)
class Section:
    """A heading, its anchor and its HTML."""

    key: str
    title: str
    body: str


def render(found: Material, *, title: str, versions: Sequence[tuple[str, str]], commands: Sequence[str]) -> str:
    """The page. ``versions`` and ``commands`` say what made it and how to make it again."""
    sections = [s for s in _sections(found, versions, commands) if s.body]
    links = "".join(f'<li><a href="#{s.key}">{escape(s.title)}</a></li>' for s in sections)
    body = "".join(
        f'<section id="{s.key}" aria-labelledby="{s.key}-h"><h2 id="{s.key}-h">{escape(s.title)}</h2>{s.body}</section>'
        for s in sections
    )
    warning = ""
    toys = sorted({p.params.name for p in found.plans if p.params.name.startswith("insecure-")})
    toys += sorted({str(d["params"]) for d in found.demos if str(d["params"]).startswith("insecure-")} - set(toys))
    if toys:
        words = f"({escape(', '.join(toys))}): they show how it works and protect nothing."
        warning = f'<p class="warning"><strong>Insecure toy parameters</strong> {words}</p>'
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,">'
        f"<title>{escape(title)}</title><style>{CSS}</style></head><body>"
        '<a class="skip" href="#main">Skip to the results</a>'
        f"<header><h1>{escape(title)}</h1>{warning}</header>"
        f'<nav aria-label="Sections"><ul>{links}</ul></nav><main id="main" tabindex="-1">{body}</main>'
        "<footer><p>Made by heatfhe. Everything on this page is in this one file.</p></footer></body></html>\n"
    )


def _sections(found: Material, versions: Sequence[tuple[str, str]], commands: Sequence[str]) -> Iterable[Section]:
    yield Section("summary", "Summary", _summary(found))
    yield Section("quality", "Quality", _quality(found))
    yield Section("time", "One token's time", _times(found))
    yield Section("compare", "Side by side", _side_by_side(found))
    seen = "".join(_demo(d, i) for i, d in enumerate(found.demos))
    yield Section("server", "What the server saw, and what the client saw", seen)
    yield Section("comparison", "Every way to a circuit", "".join(map(_comparison, found.comparisons)))
    if found.circuits:
        body = _figures([charts.iterations(found.circuits), charts.depth_map(found.circuits)])
        yield Section("iterations", "Iterations and depth map", body)
    if found.trainings:
        made = charts.training_curves(found.trainings)
        for i, run in enumerate(found.trainings):
            made += charts.distributions(run, i)
        yield Section("training", "Training", _figures(made))
    if found.plans:
        yield Section("levels", "Levels along a token", _figures([charts.levels(found.plans)]))
        yield Section("latency", "Latency by operator", _figures([charts.latency(found.plans)]))
    colours = {c.name: i for i, c in enumerate(found.circuits)}
    runs = [
        (f"{e['name']} on {e['engine']}", e["fidelity"], colours.get(e["name"], i), i)
        for i, e in enumerate(found.evaluations)
    ]
    body = _figures(charts.by_position("fidelity", "Fidelity", runs)) + _evaluations(found)
    yield Section("fidelity", "Fidelity by position", body)
    yield Section("stress", "Text that nobody trained on", _stress(found))
    sigmas = sorted({d["sigma"] for d in found.drifts})
    noisy = [
        (f"{d['name']}, noise {d['sigma']:g}", d["fidelity"], colours.get(d["name"], i), sigmas.index(d["sigma"]))
        for i, d in enumerate(found.drifts)
    ]
    drawn = _figures(charts.by_position("drift", "Drift", noisy))
    note = "Noise of this standard deviation at every bootstrap of the plan, on the clear engine, teacher forced."
    yield Section("drift", "Drift under bootstrap noise", f"<p>{note}</p>{drawn}" if drawn else "")
    yield Section("parameters", "Parameters and their security claim", _parameters(found))
    yield Section("made", "How it was made", _settings(found))
    rows = [(name, value) for name, value in versions]
    listing = "".join(f"<li><code>{escape(c)}</code></li>" for c in commands)
    yield Section("versions", "This page", table(("part", "version"), rows, stack=True) + f"<ul>{listing}</ul>")
    words = "".join(f"<dt>{escape(word)}</dt><dd>{escape(meaning)}</dd>" for word, meaning in GLOSSARY)
    yield Section("glossary", "Words", f'<dl class="words">{words}</dl>')


def _summary(found: Material) -> str:
    headers, rows = quality.cost_rows(found)
    prices = sorted({f"{p.prices.name}: {p.prices.hardware} ({p.prices.provenance})" for p in found.plans})
    note = f'<p class="words">Predicted with the cost table {escape("; ".join(prices))}.</p>' if prices else ""
    if prices:
        note += f'<p class="words">{PER_TOKEN}</p>'
    shapes = sorted({c.shape for c in found.circuits})
    about = f'<p class="lead">Model: {escape("; ".join(shapes))}.</p>' if shapes else ""
    if rows:
        return about + _tiles(headers, rows) + table(headers, rows, stack=True) + note
    kinds = [f"{len(v)} {k}" for k, v in (("training runs", found.trainings), ("plans", found.plans)) if v]
    kinds += [f"{len(v)} {k}" for k, v in (("evaluations", found.evaluations), ("drifts", found.drifts)) if v]
    kinds += [f"{len(v)} {k}" for k, v in (("stresses", found.stresses), ("comparisons", found.comparisons)) if v]
    return f"<p>Found: {escape(', '.join(kinds) or 'a demo')}.</p>"


def _quality(found: Material) -> str:
    groups: dict[str, list[tuple[Any, ...]]] = {}
    for *row, on in quality.quality_rows(found):
        groups.setdefault(on, []).append(tuple(row))
    out = ""
    for on, rows in groups.items():
        noisy = any(row[2] is not None for row in rows)
        cells = [(row[0], *("not measured" if v is None else v for v in row[1 : 3 if noisy else 2])) for row in rows]
        label = f"perplexity on {escape(on, quote=True)}"
        out += f"<h3>On {escape(on)}</h3>" + table(quality.QUALITY[: 3 if noisy else 2], cells, label=label, fit=True)
    words = "Perplexity, lower is better; comparable within one of these tables only."
    return f'<p class="words">{words}</p>{out}' if out else ""


def _times(found: Material) -> str:
    told = quality.times(found)
    if told is None:
        return ""
    out = f'<p class="lead">{escape(told.summary)}</p>' + table(quality.TIMES, told.rows, stack=True)
    if told.operators:
        words = "One token up to its logits, by operator, the largest difference first."
        out += f"<h3>Where the difference goes</h3><p>{words}</p>" + table(
            quality.OPERATORS, told.operators, stack=True
        )
    return out


def _side_by_side(found: Material) -> str:
    rows = quality.side_by_side(found)
    if not rows:
        return ""
    first, last = found.circuits[0].name, found.circuits[-1].name
    return table(("figure", first, last, "second / first"), rows, fit=True)


def _stress(found: Material) -> str:
    rows = quality.stress_rows(found)
    if not rows:
        return ""
    gone, all_of_them = sum(r[3] or 0 for r in rows), sum(r[2] or 0 for r in rows)
    words = f"{gone} of {all_of_them} windows diverge: their logits are lost, and no server can know."
    return f"<p>{words}</p>" + table(quality.STRESS, rows, stack=True)


def _settings(found: Material) -> str:
    headers, rows = quality.settings(found)
    if not rows:
        return ""
    asked = [row for row in rows if row[0] in ASKED_FOR]
    rest = [row for row in rows if row[0] not in ASKED_FOR]
    numbers = table(headers, rest, label="every number of the recipe")
    return (
        table(headers, asked, stack=True) + f"<details><summary>Every number of the recipe</summary>{numbers}</details>"
    )


def _tiles(headers: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Large numbers: what the first circuit needs and, after an arrow, what the last one does."""
    first, last = rows[0], rows[-1]
    out = ""
    for what, before, after in zip(headers[1:], first[1:], last[1:]):
        if "not measured" in (before, after):
            continue
        shown = [f"{v:.3g}" if isinstance(v, float) else str(v) for v in (before, after)]
        was = "" if len(rows) == 1 else f'<span class="was">{escape(shown[0])} → </span>'
        out += f'<li><strong>{was}<span class="now">{escape(shown[1])}</span></strong>'
        out += f'<span class="what">{escape(what)}</span></li>'
    names = first[0] if len(rows) == 1 else f"{first[0]} → {last[0]}"
    return f'<p>{escape(str(names))}</p><ul class="tiles">{out}</ul>'


def _comparison(body: dict[str, Any]) -> str:
    """The tables of heat compare, one for each place where noise entered."""
    out = ""
    for where, part in body.get("tables", {}).items():
        place = "every site" if where == "sites" else f"every bootstrap of {where}"
        note = f"Noise of {body['sigma']:g} at {place}; means over seeds, and where they differ the least and largest."
        out += f"<p>{escape(note)}</p>" + table(part["headers"], part["rows"], label="Comparison")
    return out


def _evaluations(found: Material) -> str:
    if not found.evaluations and not found.free_running:
        return ""
    out = ""
    if found.evaluations:
        headers = ["circuit", "engine", "parameters", "positions", "KL (median)", "top-1", "collapsed"]
        headers += ["bootstraps up to the logits", "s up to the logits"]
        rows = []
        for e in found.evaluations:
            f = e["fidelity"]
            rows.append((e["name"], e["engine"], e["params"], e["positions"], f["kl"], f["top1"],
                         f"{f['collapsed']}/{f['windows']}", e["bootstraps"], e["seconds"]))  # fmt: skip
        out += table(headers, rows, stack=True)
        times = [
            (e["name"], operator, e["by_operator"].get(operator, 0.0), e["predicted"].get(operator, 0.0))
            for e in found.evaluations
            for operator in sorted({*e["by_operator"], *e["predicted"]})
        ]
        out += table(("circuit", "operator", "seconds per position", "predicted"), times) if times else ""
    free = [
        (name, " ".join(map(str, got)), " ".join(map(str, wanted)), "yes" if got == wanted else "no")
        for name, runs in found.free_running.items()
        for got, wanted in runs
    ]
    return out + (table(("circuit", "encrypted tokens", "clear tokens", "equal"), free) if free else "")


def _demo(demo: dict[str, Any], number: int) -> str:
    saw, got = demo["server"], demo["client"]
    left = "".join(f"<dt>{escape(k)}</dt><dd>{escape(str(v))}</dd>" for k, v in saw["facts"])
    right = "".join(f"<dt>{escape(k)}</dt><dd>{escape(str(v))}</dd>" for k, v in got["facts"])
    hexed = "<p>Bytes from the middle of the first ciphertext:</p>"
    hexed += f'<pre tabindex="0" role="region" aria-label="Bytes of a ciphertext">{escape(saw["hex"])}</pre>'
    said = sealed = ""
    if "prompt" in got:
        said = f'<p class="said">{escape(got["prompt"])}<mark>{escape(got["answer"])}</mark></p>'
        bytes_ = saw["hex"].split()[:12]
        sealed = f'<p class="said"><span class="sealed">{escape(" ".join(bytes_))} …</span></p>'
    return (
        '<div class="beside">'
        f"<div><h3>The server</h3>{sealed}<dl>{left}</dl>{hexed}</div>"
        f"<div><h3>The client</h3>{said}<dl>{right}</dl></div></div>{_figures([charts.stages(demo, number)])}"
    )


def _parameters(found: Material) -> str:
    """Each set as a list, not a row: a claim is a sentence and must be read whole on any screen."""
    seen = {plan.params.name: plan.params for plan in found.plans}
    out = ""
    for p in seen.values():
        facts = (
            ("security claim", p.security_claim),
            ("engine", p.engine),
            ("ring dimension", f"{p.ring_dimension}, {p.slots} slots"),
            ("levels after a bootstrap", p.levels),
            ("scale", f"{p.scale_bits:g} bits"),
            ("log2 QP", f"{p.log_qp:.1f} bits"),
            ("noise of a bootstrap", f"{p.noise:.2g}"),
        )
        items = "".join(f'<dt>{escape(k)}</dt><dd class="claim">{escape(str(v))}</dd>' for k, v in facts)
        kind = "set" if p.security_bits else "set toy"
        out += f'<div class="{kind}"><h3>{escape(p.name)}</h3><dl>{items}</dl></div>'
    return out


def _figures(made: Sequence[Figure]) -> str:
    return "".join(_figure(f) for f in made)


def _figure(f: Figure) -> str:
    label = escape(f.caption, quote=True)
    return (
        f'<figure><figcaption>{escape(f.caption)}</figcaption><p class="words">{escape(f.words)}.</p>'
        f'<div class="wide" tabindex="0" role="region" aria-label="{label}">{f.svg}</div>'
        "<details><summary>The data of this figure as a table</summary>"
        f"{table(f.headers, f.rows, label=label)}</details></figure>"
    )


def table(
    headers: Sequence[str],
    rows: Sequence[Sequence[Any]],
    *,
    label: str = "Table",
    stack: bool = False,
    fit: bool = False,
) -> str:
    """An HTML table whose first column heads its row.

    Where it is wide it scrolls in a region of its own. On a narrow screen every row of a ``stack`` becomes a card, and
    the few columns of one that is to ``fit`` share the width.
    """
    head = "".join(f'<th scope="col">{escape(h)}</th>' for h in headers)
    marked = len(headers) > 1 and headers[-1] == "differs"
    body = "".join(
        f'<tr class="differs">{_row(headers, row)}</tr>'
        if marked and row[-1] == "yes"
        else f"<tr>{_row(headers, row)}</tr>"
        for row in rows
    )
    name = label if label != "Table" else escape(", ".join(headers), quote=True)
    inner = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    kind = "wide stack" if stack else "wide fit" if fit else "wide"
    return f'<div class="{kind}" tabindex="0" role="region" aria-label="Table: {name}">{inner}</div>'


def _row(headers: Sequence[str], row: Sequence[Any]) -> str:
    first, *rest = (escape(_cell(v)) for v in row)
    cells = "".join(
        f'<td data-label="{escape(h, quote=True)}"><span>{v}</span></td>' for h, v in zip(headers[1:], rest)
    )
    return f'<th scope="row">{first}</th>{cells}'


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}" if math.isfinite(value) else "none"
    return "none" if value is None else str(value)
