# SPDX-License-Identifier: Apache-2.0
"""Quality beside cost: perplexities, what stress and noise did, one time per token, two circuits side by side."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from heatfhe.report.gather import CircuitFacts, Material, PlanFacts

Row = tuple[Any, ...]
QUALITY = ("model", "perplexity", "under noise", "measured on")
STRESS = ("circuit", "text", "windows", "diverge", "leave a domain", "faint")
TIMES = ("one token", "seconds", "what it is")
OPERATORS = ("operator", "predicted s", "measured s", "difference s", "of the whole difference")
COMPARED = (
    ("calibrated", r"calibrated 1e-04 plain"),
    ("control", r"control plain"),
    ("HEAT", r"heat plain"),
)
"""Rows of a comparison that answer what fine-tuning alone gives, and what HEAT adds."""


def plan_of(found: Material, circuit: CircuitFacts) -> PlanFacts | None:
    """The last plan of a circuit."""
    return next((p for p in reversed(found.plans) if p.circuit == circuit.digest), None)


def quality_rows(found: Material) -> list[Row]:
    """Perplexity of parent, control, calibrated and HEAT, wherever a run measured it. Compare within one text only."""
    rows: list[Row] = []
    for run in found.trainings:
        size = run.made_from.get("corpus", {}).get("held_out")
        on = f"windows that {run.name} held out" + (f" (of {size})" if size else "")
        for words, loss in (("parent, exact", run.parent), (f"{run.name}, as deployed", run.deployed)):
            if loss is not None:
                rows.append((words, math.exp(loss), None, on))
    for body in found.comparisons:
        rows += _compared(body)
    for c in found.circuits:
        if c.perplexity is not None:
            rows.append((c.name, c.perplexity, None, found.measured_on))
    for d in found.drifts:
        f = d["fidelity"]
        on = f"{_windows(f)}, with noise {d['sigma']:g} at every bootstrap"
        rows.append((d["name"], f["clear_perplexity"], f["perplexity"], on))
    for e in found.evaluations:
        f = e["fidelity"]
        on = f"{_windows(f)} of {e['positions']} tokens, on the {e['engine']} engine with {e['params']}"
        rows.append((e["name"], f["clear_perplexity"], f["perplexity"], on))
    return rows


def _windows(fidelity: dict[str, Any]) -> str:
    return f"{fidelity['windows']} window{'' if fidelity['windows'] == 1 else 's'}"


def _compared(body: dict[str, Any]) -> list[Row]:
    """Rows of a comparison, each the mean over its seeds."""
    out: list[Row] = []
    where = body.get("params") or "every site"
    windows = next((r["windows"] for r in body["rows"]), 0)
    on = f"{windows} held-out windows of heat compare, with noise {body['sigma']:g} at {where}"
    out += [("parent, exact", r["perplexity"], None, on) for r in body["rows"] if r["name"] == "plaintext"][:1]
    for words, pattern in COMPARED:
        group = [r for r in body["rows"] if re.fullmatch(rf"{pattern}(?: seed \d+)?", r["name"])]
        if group:
            seeds = f", mean of {len(group)}" if len(group) > 1 else ""
            clear, noisy = (_mean([r[k] for r in group]) for k in ("perplexity", "noisy_perplexity"))
            out.append((f"{words}{seeds}", clear, noisy, on))
    return out


def _mean(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return sum(known) / len(known) if len(known) == len(values) and known else None


def stress_rows(found: Material) -> list[Row]:
    """What text that nobody trained on did to each circuit: by heat stress, or else by the run that made it."""
    rows: list[Row] = []
    judged = {s["digest"] for s in found.stresses}
    for body in found.stresses:
        for s in body["stress"]:
            rows.append((body["circuit"], s["kind"], s["windows"], s["diverged"], s["outside"], s["faint"]))
    for c in found.circuits:
        for kind, s in c.stress.items() if c.digest not in judged else ():
            rows.append((c.name, kind, s.get("windows"), s.get("diverged"), s.get("outside"), s.get("faint")))
    return rows


def lost(found: Material, circuit: CircuitFacts) -> str | None:
    """Windows of a circuit that diverge, of how many."""
    own = [r for r in stress_rows(found) if r[0] == circuit.name]
    if not own:
        return None
    return f"{sum(r[3] or 0 for r in own)} of {sum(r[2] or 0 for r in own)}"


@dataclass(frozen=True, slots=True)
class Times:
    """One token's time: what was predicted, what was measured, and where the difference goes."""

    summary: str
    rows: list[Row]
    operators: list[Row]


def times(found: Material) -> Times | None:
    """Predicted and measured seconds of one token of the last plan, brought together."""
    plan = next((p for p in reversed(found.plans) if p.prices.unit == "s"), None)
    if plan is None:
        return None
    program = "one generated token, argmax and embedding of its result included"
    rows: list[Row] = [(f"predicted, {plan.name}", plan.seconds, f"{program}; prices {plan.prices.name}")]
    rows.append(("of it in bootstraps", plan.bootstrap_seconds, f"{plan.bootstraps} bootstraps of {plan.params.name}"))
    if plan.prompt_seconds is not None:
        rows.append(("predicted, a token of the prompt", plan.prompt_seconds, "no head and no argmax"))
    summary = f"Predicted {plan.seconds:.3g} s for a generated token."
    for demo in found.demos:
        told = _request(plan, demo.get("timing"))
        if told is not None:
            summary, more = told
            rows += more
    known = [e for e in found.evaluations if e["name"] == plan.name and e["by_operator"] and e["engine"] != "clear"]
    operators: list[Row] = []
    for e in known[-1:]:
        operators = _operators(e)
        predicted = sum(e["predicted"].values())
        words = f"{e['engine']} engine, mean of {e['positions']} positions, up to the logits: no argmax"
        rows.append(("measured, up to the logits", e["seconds"], words))
        rows.append(("predicted, up to the logits", predicted, "the same program, by the same prices"))
        if not found.demos:
            summary += f" Up to the logits {predicted:.3g} s were predicted and {e['seconds']:.3g} s measured."
    return Times(summary, rows, operators)


def _request(plan: PlanFacts, timing: dict[str, Any] | None) -> tuple[str, list[Row]] | None:
    """A whole request, predicted from its tokens and measured on server and client."""
    if timing is None or plan.prompt_seconds is None:
        return None
    first, tokens = timing["prompt"] - 1, timing["tokens"]
    predicted = first * plan.prompt_seconds + tokens * plan.seconds
    server, client = timing["server"], timing["client"]
    words = f"{first} tokens of the prompt and {tokens} generated (the prompt's last token makes the first of them)"
    ratio = server / predicted
    rows: list[Row] = [
        ("predicted, the whole request", predicted, words),
        ("measured by the server", server, f"{ratio:.2f} times the prediction; its keys and weights loaded included"),
        ("measured by the client", client, "encryption, transfer, waiting and decryption included"),
        ("between server and client", client - server, "what the network and the client add"),
    ]
    summary = (
        f"A request of {timing['prompt']} + {tokens} tokens was predicted to take {predicted:.3g} s; the server took "
        f"{server:.3g} s ({ratio:.2f} times that) and the client waited {client:.3g} s. A generated token: "
        f"{plan.seconds:.3g} s predicted, {plan.seconds * ratio:.3g} s at the measured ratio."
    )
    return summary, rows


def _operators(e: dict[str, Any]) -> list[Row]:
    """Where measured and predicted time differ, largest first."""
    names = {*e["by_operator"], *e["predicted"]}
    pairs = {n: (e["predicted"].get(n, 0.0), e["by_operator"].get(n, 0.0)) for n in names}
    whole = sum(m - p for p, m in pairs.values())
    ordered = sorted(pairs, key=lambda n: (-abs(pairs[n][1] - pairs[n][0]), n))

    def row(name: str, predicted: float, measured: float) -> Row:
        share = f"{(measured - predicted) / whole:.0%}" if whole else "-"
        return (name, predicted, measured, measured - predicted, share)

    sums = (sum(p for p, _ in pairs.values()), sum(m for _, m in pairs.values()))
    return [*(row(n, *pairs[n]) for n in ordered), row("all", *sums)]


def cost_rows(found: Material) -> tuple[tuple[str, ...], list[Row]]:
    """Each circuit in one row: quality and cost of a token. Bootstraps and levels are those of one generated token."""
    unit = found.plans[0].prices.unit if found.plans else "s"
    headers: tuple[str, ...] = ("circuit", "iterations per token", "levels per token", "bootstraps per token")
    rows: list[Row] = []
    for c in found.circuits:
        p = plan_of(found, c)
        priced = (p.levels, p.bootstraps, p.seconds) if p else ("not planned",) * 3
        rows.append((c.name, sum(c.iterations().values()), *priced))
    headers = (*headers, f"{unit} per token, predicted")
    for words, values in (
        ("perplexity", [c.perplexity for c in found.circuits]),
        ("odd windows lost", [lost(found, c) for c in found.circuits]),
    ):
        if any(v is not None for v in values):
            headers = (*headers, words)
            rows = [(*row, "not measured" if v is None else v) for row, v in zip(rows, values)]
    return headers, rows


def side_by_side(found: Material) -> list[Row]:
    """The first circuit beside the last: every figure that both have, and their ratio."""
    if len(found.circuits) < 2:
        return []
    first, last = found.circuits[0], found.circuits[-1]
    headers, rows = cost_rows(found)
    out: list[Row] = [_pair(words, a, b) for words, a, b in zip(headers[1:], rows[0][1:], rows[-1][1:])]
    ours, theirs = plan_of(found, first), plan_of(found, last)
    if ours is not None and theirs is not None:
        out.append(_pair("rotation keys", ours.rotations, theirs.rotations))
        out.append(_pair("evaluation keys, MB", ours.key_bytes / 1e6, theirs.key_bytes / 1e6))
    for family, count in first.iterations().items():
        out.append(_pair(f"iterations, {family.replace('_', ' ')}", count, last.iterations()[family]))
    return out


def _pair(words: str, a: Any, b: Any) -> Row:
    numbers = isinstance(a, (int, float)) and isinstance(b, (int, float)) and a
    return (words, a, b, f"{b / a:.3g}" if numbers else "-")


def settings(found: Material) -> tuple[tuple[str, ...], list[Row]]:
    """How each training run was made: command, commit, seed, corpus and every number of its recipe; a column each."""
    runs = [r for r in found.trainings if r.made_from]
    if not runs:
        return (), []
    columns = [_flat(r.made_from) for r in runs]
    names = list(dict.fromkeys(name for column in columns for name in column))
    differ = len(runs) > 1
    rows = []
    for name in names:
        values = [column.get(name, "-") for column in columns]
        mark = ("yes" if len({str(v) for v in values}) > 1 else "no",) if differ else ()
        rows.append((name, *values, *mark))
    return ("setting", *(r.name for r in runs), *(("differs",) if differ else ())), rows


def _flat(made_from: dict[str, Any]) -> dict[str, Any]:
    """Settings by name, first those that people ask for."""
    corpus, recipe = made_from.get("corpus", {}), dict(made_from.get("recipe", {}))
    out: dict[str, Any] = {
        "command": made_from.get("command"),
        "commit of heatfhe": made_from.get("commit") or f"not a clone; version {made_from.get('heatfhe')}",
        "model": made_from.get("model"),
        "seed": recipe.pop("seed", None),
        "corpus": ", ".join(corpus.get("texts", ())),
        "windows, held out": f"{corpus.get('windows')}, {corpus.get('held_out')}",
        "sha256 of the windows": corpus.get("sha256"),
    }
    for name, value in recipe.items():
        if isinstance(value, dict):
            out |= {f"{name}: {k}": v for k, v in value.items()}
        else:
            out[name] = ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else value
    return out
