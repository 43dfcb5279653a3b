# SPDX-License-Identifier: Apache-2.0
"""What heat drift --by-value prints and draws: values ranked by their own KL, and attention rows along a softmax."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from heatfhe.cli.console import Console
from heatfhe.errors import MissingExtraError
from heatfhe.evaluation import ByValue
from heatfhe.files import atomic_write

SHOWN = 12  # values of a table and of a figure; --json has all


def show(found: ByValue, console: Console) -> None:
    """One circuit's answer first, then its tables."""
    together = found.together
    if not found.values:
        console.print(f"{found.name} refreshes nothing of {found.only}")
        return
    first = found.values[0]
    share = first.fidelity.kl / found.summed if found.summed > 0 else float("nan")
    console.heading(f"{found.name}: {first.value.name} amplifies most, {100 * share:.0f} % of all KL")
    shares = ", ".join(f"{operator} {100 * s:.3g} %" for operator, s in found.by_operator().items())
    console.print(
        f"{len(found.values)} values: each alone adds up to a KL of {found.summed:.3g}, all together make "
        f"{together.kl:.3g} with {together.collapsed}/{together.windows} collapsed; by operator {shares}"
    )
    console.table(
        ("value", "slots", "KL alone", "last quarter", "top-1", "collapsed"),
        [
            (
                f"{v.value.number} {v.value.name}", v.value.period, v.fidelity.kl, _late(v.fidelity.kl_by_position),
                v.fidelity.top1, f"{v.fidelity.collapsed}/{v.fidelity.windows}",
            )
            for v in found.values[:SHOWN]
        ],
    )  # fmt: skip
    console.print("relative error of attention rows with all of them noisy, over the last quarter of the positions:")
    parts = list(dict.fromkeys(r.part for r in found.rows))
    errors = {(r.stage, r.part): r.last for r in found.rows}
    stages = dict.fromkeys(r.stage for r in found.rows)
    console.table(("attention", *parts), [(s, *(errors.get((s, p), "-") for p in parts)) for s in stages])


def _late(curve: Sequence[float]) -> float:
    part = np.array(curve[-max(1, len(curve) // 4) :])
    return float(np.median(part[np.isfinite(part)])) if np.isfinite(part).any() else float("nan")


def draw(found: Sequence[ByValue], path: Path) -> None:
    """For each circuit: the values that cause most, and the rows of the attention that ends furthest off."""
    try:
        import matplotlib
    except ModuleNotFoundError as err:
        raise MissingExtraError("report", needed_by="heat drift --figure") from err
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(len(found), 2, figsize=(13, 4.2 * len(found)), squeeze=False)
    for (left, right), one in zip(axes, found):
        _bars(left, one)
        _rows(right, one)
    figure.tight_layout()
    with atomic_write(path) as f:
        figure.savefig(f, format="png", dpi=150)
    pyplot.close(figure)


def _bars(axis: Any, found: ByValue) -> None:
    top = found.values[:SHOWN][::-1]
    axis.barh([f"{v.value.number} {v.value.name}" for v in top], [max(v.fidelity.kl, 1e-18) for v in top], color="C0")
    axis.set_xscale("log")
    axis.tick_params(axis="y", labelsize="small")
    axis.set_xlabel("KL to the clear run, this value alone noisy (nats)")
    axis.set_title(f"{found.name}, noise {found.sigma:g} on {found.params}", fontsize="medium")


def _rows(axis: Any, found: ByValue) -> None:
    if not found.rows:
        return
    worst = max(found.rows, key=lambda r: r.last).stage
    for row in found.rows:
        if row.stage == worst:
            axis.semilogy(range(1, len(row.by_position) + 1), row.by_position, label=row.part)
    axis.set_xlabel("position")
    axis.set_ylabel("relative error of the row")
    axis.set_title(f"rows of {worst} after each part of its softmax, all values noisy", fontsize="medium")
    axis.legend(fontsize="small")
