# SPDX-License-Identifier: Apache-2.0
"""A plan as text, for golden files: what it holds, counts by operator, every bootstrap."""

from __future__ import annotations

from heatfhe.planning import Plan, cost_table
from heatfhe.planning.show import levels
from heatfhe.planning.tally import OperatorTally, path, tally


def show(plan: Plan) -> str:
    """The text form: stable, one bootstrap a line."""
    p, table = plan.packing, cost_table(plan.cost)
    lines = [
        f"plan {plan.name} on {plan.params.name}: {plan.params.levels} levels, {plan.params.slots} slots, "
        f"context {plan.context}, placement {plan.placement}",
        f"layout D {p.D} t {p.t} m {p.m} hidden {p.F}x{p.hidden_parts} vocabulary {p.V}x{p.vocabulary_parts}; "
        f"{len(plan.rotations)} rotation keys, {len(plan.products)} linear maps",
        "rotations " + " ".join(str(k) for k in plan.rotations),
        "cache " + " ".join(f"{k}:{count}@{level}" for k, (count, level) in sorted(plan.cache.items())),
    ]
    for name, program in plan.programs.items():
        lines.append("")
        boots = program.bootstraps()
        pairs = sum(1 for s in boots if s.kind == "bootstrap_pair")
        lines.append(f"program {name}: {len(program.steps)} steps, {len(boots)} bootstraps ({pairs} paired)")
        lines += [f"  {row}" for row in rows(tally(plan, name, table))]
        lines.append("  levels along the longest path " + levels(path(program)))
        for i, step in enumerate(program.steps):
            if step.kind.startswith("bootstrap"):
                grows = f" * ({step.rows:g} power of the row)" if step.rows else ""
                lines.append(f"  {i:5d} {step.kind} {step.name} period {step.period} bound {step.bound:.4g}{grows}")
    return "\n".join(lines) + "\n"


def rows(found: dict[str, OperatorTally]) -> list[str]:
    """One line of counts per operator."""
    out = ["operator    full sparse paired    pt masks scalars ct*ct relin hoisted   rot conj levels"]
    for t in found.values():
        out.append(
            f"{t.operator:<11s}{t.full:5d}{t.sparse:7d}{t.paired:7d}{t.plain_products:6d}{t.masks:6d}{t.scalars:8d}{t.products:6d}"
            f"{t.relinearisations:6d}{t.hoisted:8d}{t.rotations:6d}{t.conjugations:5d}{t.levels:7d}"
        )
    return out
