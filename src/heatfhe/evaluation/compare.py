# SPDX-License-Identifier: Apache-2.0
"""One row per way to a circuit: iterations, levels, bootstraps, and quality in plaintext and under noise."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heatfhe.circuit import Circuit
from heatfhe.ckks import Params
from heatfhe.engine import BootstrapNoise
from heatfhe.evaluation.drift import drift
from heatfhe.evaluation.noisy import under_noise
from heatfhe.evaluation.stress import stress_circuit, stress_rows
from heatfhe.files import existing, plain
from heatfhe.planning import ProgramName, plan
from heatfhe.records import FAMILIES


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One circuit measured.

    ``levels`` are those its solvers spend. With ``params`` the circuit was planned: ``bootstraps`` are those of one
    token up to its logits, and the noise entered at each of them. Without, it entered at every site's input and output.
    ``transformer_seconds`` are what the plan predicts up to the logits; ``token_bootstraps`` and ``token_seconds``
    those of a generated token, its argmax included. ``stressed`` windows that no text looks like were run, ``stray`` of
    them diverged. Of ``positions`` in all windows ``clear_lost`` are no number in the clear and ``lost`` diverge under
    noise: a perplexity can say nothing of these. ``seconds`` is how long its training took. The parent in plaintext has
    no iterations, and no noise.
    """

    name: str
    iterations: dict[str, int]
    levels: int
    perplexity: float
    noisy_perplexity: float
    kl: float
    top1: float
    collapsed: int
    windows: int
    bootstraps: int | None = None
    params: str | None = None
    seconds: float = 0.0
    transformer_seconds: float | None = None
    token_bootstraps: int | None = None
    token_seconds: float | None = None
    stray: int | None = None
    stressed: int | None = None
    positions: int | None = None
    clear_lost: int | None = None
    lost: int | None = None

    @property
    def total(self) -> int:
        """Iterations per forward."""
        return sum(self.iterations.values())

    def as_json(self) -> dict[str, Any]:
        """Plain JSON form; a number that does not exist is null."""
        return existing(plain(self))

    @classmethod
    def from_json(cls, body: dict[str, Any]) -> Row:
        """Inverse of as_json."""
        missing = {k: math.nan for k in ("perplexity", "noisy_perplexity", "kl", "top1") if body[k] is None}
        return cls(**{**body, **missing})


HEADERS = (
    *("circuit", "it/fwd"),
    *(f"{family.split('_')[0][:4]}-{FAMILIES[family].suffix[:6]}" for family in FAMILIES),
    *("levels", "bts", "s", "bts/tok", "s/tok", "coll.", "lost", "top-1 %", "ppl noisy", "ppl", "KL", "stray"),
)


def solver_levels(iterations: dict[str, int]) -> int:
    """Levels the iterations spend: one per Goldschmidt step, two per Newton step."""
    return sum(FAMILIES[family].levels * count for family, count in iterations.items())


def measure(
    name: str,
    circuit: Circuit,
    windows: NDArray[np.int64],
    sigma: float,
    *,
    seed: int = 0,
    params: Params | None = None,
    seconds: float = 0.0,
    stressed: int = 0,
) -> Row:
    """Measure a circuit on held-out windows (W, positions + 1), clear and with noise of standard deviation sigma.

    With ``params`` the circuit is planned and the noise enters at every bootstrap of the plan, in every slot.
    ``stressed`` odd windows of each kind are run in the clear, made from the held-out ones.
    """
    planned: dict[str, Any] = {}
    if params is None:
        found = under_noise(circuit, windows, sigma, seed=seed)
    else:
        made = plan(circuit, params, programs=(ProgramName.LOGITS,))
        drifted = drift(made, circuit, windows, noise=BootstrapNoise(sigma=sigma), seeds=(seed,))
        found = drifted.fidelity
        planned = {
            "bootstraps": drifted.bootstraps,
            "transformer_seconds": made.program(ProgramName.LOGITS).predicted_seconds,
            "params": params.name,
        }
        if circuit.calibration.argmax is not None:
            whole = plan(circuit, params, programs=(ProgramName.GENERATE,)).program(ProgramName.GENERATE)
            planned |= {"token_bootstraps": len(whole.bootstraps()), "token_seconds": whole.predicted_seconds}
    if stressed:
        odd = stress_rows(windows[:, :-1], circuit.shape.vocabulary, windows.shape[1] - 1, stressed)
        kinds = stress_circuit(circuit, odd)
        planned |= {"stray": sum(s.diverged for s in kinds), "stressed": sum(s.windows for s in kinds)}
    iterations = circuit.calibration.iterations()
    return Row(
        name=name,
        iterations=iterations,
        levels=solver_levels(iterations),
        perplexity=found.clear_perplexity,
        noisy_perplexity=found.perplexity,
        kl=found.kl,
        top1=found.top1,
        collapsed=found.collapsed,
        windows=found.windows,
        positions=windows[:, 1:].size,
        clear_lost=found.clear_lost,
        lost=found.lost,
        seconds=seconds,
        **planned,
    )


def plaintext_row(name: str, perplexity: float, windows: int) -> Row:
    """The parent with exact nonlinearities: nothing to count, to plan or to make noisy."""
    return Row(
        name=name, iterations=dict.fromkeys(FAMILIES, 0), levels=0, perplexity=perplexity, noisy_perplexity=math.nan,
        kl=math.nan, top1=math.nan, collapsed=0, windows=windows,
    )  # fmt: skip


def table_row(row: Row) -> tuple[Any, ...]:
    """A row as the table prints it."""
    stray = "-" if row.stray is None else f"{row.stray}/{row.stressed}"
    return (
        *(row.name, row.total, *row.iterations.values(), row.levels, _cell(row.bootstraps)),
        *(_cell(row.transformer_seconds, ".3g"), _cell(row.token_bootstraps), _cell(row.token_seconds, ".3g")),
        *(f"{row.collapsed}/{row.windows}", _lost([row]), _cell(100 * row.top1, ".1f")),
        *(_cell(row.noisy_perplexity, ".3f"), _cell(row.perplexity, ".3f"), _cell(row.kl, ".2e"), stray),
    )


def _cell(value: float | None, form: str = "d") -> str:
    return "-" if value is None or math.isnan(value) else format(value, form)


def _lost(rows: Sequence[Row]) -> str:
    """Positions that are no number in the clear, then those that diverge under noise, of all that were measured."""
    if any(row.positions is None for row in rows):
        return "-"
    clear, noisy, positions = (
        sum(getattr(row, name) for row in rows) for name in ("clear_lost", "lost", "positions")
    )
    return f"{clear}, {noisy}/{positions}"


def markdown(rows: Sequence[Row]) -> str:
    """The summary as a table of Markdown."""
    headers, body = summary(rows)
    lines = [f"| {' | '.join(headers)} |", "|---" * len(headers) + "|", *(f"| {' | '.join(cells)} |" for cells in body)]
    return "\n".join(lines) + "\n"


def summary(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Headers and cells of the mean over seeds, and where seeds differ their least and largest; ratios to both
    calibrations, and to the distilled control where there is one, else to the plain one."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(re.sub(r" seed \d+$", "", row.name), []).append(row)
    parents = {s: groups.get(f"calibrated 1e-04 {s}") for s in ("plain", "relaxed")}
    rival = next((name for name in CONTROLS if f"{name} plain" in groups), CONTROLS[-1])
    control = {_seed(row): row.perplexity for row in groups.get(f"{rival} plain", ())}
    mean = sum(control.values()) / len(control) if control else math.nan
    columns: dict[str, Callable[[Row], float]] = {
        "iterations": lambda r: r.total,
        **{words: _of_family(family) for family, words in FAMILY_COLUMNS.items()},
        **{f"fewer than calibrated 1e-4, {s}": _ratio_to(p[0].total) for s, p in parents.items() if p},
        "levels": lambda r: r.levels,
        "bootstraps": lambda r: _known(r.bootstraps),
        "s": lambda r: _known(r.transformer_seconds),
        "bootstraps/token": lambda r: _known(r.token_bootstraps),
        "s/token": lambda r: _known(r.token_seconds),
        "perplexity": lambda r: r.perplexity,
        f"to {rival}, %": lambda r: 100 * (r.perplexity / control.get(_seed(r), mean) - 1),
        "under noise": lambda r: r.noisy_perplexity,
        "KL": lambda r: r.kl,
        "top-1, %": lambda r: 100 * r.top1,
        "training, s": lambda r: r.seconds or math.nan,
    }
    body = []
    for name, group in groups.items():
        cells = [_mean([value(row) for row in group]) for value in columns.values()]
        stray = f"{sum(r.stray or 0 for r in group)}/{sum(r.stressed or 0 for r in group)}"
        collapsed = f"{sum(r.collapsed for r in group)}/{sum(r.windows for r in group)}"
        body.append([name, *cells, stray if group[0].stressed else "-", collapsed, _lost(group)])
    return ["circuit", *columns, "odd windows astray", "collapsed", "positions lost, clear and noisy"], body


def _known(value: float | None) -> float:
    return math.nan if value is None else value


CONTROLS = ("control-distilled", "control")  # perplexities are held against the first that is there
FAMILY_COLUMNS = {
    "norm_goldschmidt": "LN Goldschmidt",
    "norm_newton": "LN Newton",
    "softmax_init": "softmax init",
    "softmax_refine": "refine",
}


def _of_family(family: str) -> Callable[[Row], float]:
    return lambda row: row.iterations[family]


def _ratio_to(total: int) -> Callable[[Row], float]:
    return lambda row: total / max(1, row.total)


def _seed(row: Row) -> str:
    return row.name.rpartition(" seed ")[2]


def _mean(values: Sequence[float]) -> str:
    """Mean (least to largest) of what exists."""
    known = [v for v in values if math.isfinite(v)]
    if not known:
        return "-"
    shown = [f"{v:.4g}" for v in (sum(known) / len(known), min(known), max(known))]
    return shown[0] if shown[1] == shown[2] else f"{shown[0]} ({shown[1]} to {shown[2]})"
