# SPDX-License-Identifier: Apache-2.0
"""A plan as text: what it holds, every bootstrap, the operators' shares as bars; for people and golden files."""

from __future__ import annotations

from heatfhe.planning.cost import CostTable, cost_table
from heatfhe.planning.plan import Plan
from heatfhe.planning.tally import OperatorTally, path, tally

BAR = 48


def show(plan: Plan, cost: CostTable | None = None) -> str:
    """The text form: stable, one bootstrap a line."""
    p, table = plan.packing, cost or cost_table(plan.cost)
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
