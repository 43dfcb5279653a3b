# SPDX-License-Identifier: Apache-2.0
"""A circuit as text: one line per stage with its counts and domains, for people and for golden files."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import TYPE_CHECKING, Any

from heatfhe.stages import Activation, Attention, Norm, Patches

if TYPE_CHECKING:
    from heatfhe.circuit.circuit import Circuit


def show(circuit: Circuit) -> str:
    """The text form: stable, one stage a line."""
    s, c = circuit.shape, circuit.calibration
    lines = [
        f"circuit {circuit.name}: {s.layers} layers, width {s.width}, {s.heads} heads, hidden {s.hidden}, "
        f"vocabulary {s.vocabulary}, context {s.context}",
        f"calibrated at {c.tolerance:g} by rule {c.rule}, {c.solver} solver; "
        f"{sum(c.iterations().values())} iterations per forward",
    ]
    for stage in circuit.stages:
        detail = ""
        if isinstance(stage, Norm):
            n = c.norms[stage.name]
            detail = f" z [{n.fit.lo:.4g}, {n.fit.hi:.4g}] goldschmidt {n.goldschmidt_count} newton {n.newton_count}"
        elif isinstance(stage, Attention):
            r = c.softmaxes[stage.name]
            detail = (
                f" scores [{r.fit.lo:.4g}, {r.fit.hi:.4g}] delta ({r.fit.delta_1}, {r.fit.delta_2}) "
                f"init {r.init_count} refine {r.fit.passes}x{r.refine_count}"
            )
        elif isinstance(stage, Activation):
            a = c.activations[stage.name]
            detail = f" {stage.function} bound {a.fit.bound:.4g} {a.fit.kind} {a.fit.levels} levels"
        reads = ", ".join(stage.inputs) or ("image" if isinstance(stage, Patches) else "tokens")
        lines.append(f"{stage.writes} = {type(stage).__name__.lower()}({reads}){detail}")
    return "\n".join(lines) + "\n"


def facts_table(title: str, facts: Mapping[str, Any]) -> str:
    """Facts by name as HTML, as a notebook shows them."""
    rows = (f"<tr><th>{escape(str(k))}</th><td>{escape(str(v))}</td></tr>" for k, v in facts.items())
    return f"<table><caption>{escape(title)}</caption>{''.join(rows)}</table>"
