# SPDX-License-Identifier: Apache-2.0
"""What a legal plan is: values are made once, before they are read, levels only fall, rotations stay in the slots."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from heatfhe.errors import ConfigError
from heatfhe.planning.pack import LinearMap, Packing
from heatfhe.planning.program import Port, Program, Step
from heatfhe.planning.vectors import Diagonal
from heatfhe.planning.weights import MOST_PARTS, Weight, parse_weight

if TYPE_CHECKING:
    from heatfhe.planning.plan import Plan

LARGEST = 1 << 40  # an integer multiple
_DIGEST = re.compile(r"[0-9a-f]{64}")


def check(plan: Plan) -> None:
    """Raise ConfigError, naming program and step, unless every part of a plan fits the others."""
    if not _DIGEST.fullmatch(plan.circuit):
        raise ConfigError(f"plan {plan.name}: the circuit's digest is not one; plan again")
    packing = plan.packing  # which checks shape, slots and context
    for key, product in plan.products.items():
        _check_product(key, product, packing)
    cached: dict[str, tuple[int, int]] = {}
    for program in plan.programs.values():
        _check_program(program, plan)
        for name, port in (*program.inputs.items(), *program.outputs.items()):
            held = (len(port.values), port.level)
            if "/" in name and cached.setdefault(name, held) != held:
                raise ConfigError(
                    f"{name}: is kept as {held} in program {program.name!r}, as {cached[name]} in another"
                )


def _check_product(weight: Weight, p: LinearMap, packing: Packing) -> None:
    key = p.weight.key
    if parse_weight(key) != weight:
        raise ConfigError(f"{weight.key}: a plan file would read this name as another linear map's")
    if len(p.babies) * len(p.giants) > packing.slots * packing.slots:
        raise ConfigError(f"{key}: a linear map has at most as many rotations as slots")
    for rotations in (p.babies, p.giants):
        if len(set(rotations)) != len(rotations):
            raise ConfigError(f"{key}: a rotation stands twice in a linear map")
    if not all(abs(k) < packing.slots for k in (*p.babies, *p.giants, p.half)):
        raise ConfigError(f"{key}: a rotation of a linear map lies outside the {packing.slots} slots")


def _check_program(program: Program, plan: Plan) -> None:
    levels: dict[int, int] = {}
    where = f"program {program.name!r}"
    if not (math.isfinite(program.predicted_seconds) and program.predicted_seconds >= 0):
        raise ConfigError(f"{where}: predicted seconds must be finite and not negative")
    for name, port in program.inputs.items():
        _check_port(f"{where}, input {name}", port, plan.params.levels)
        for value in port.values:
            if value in levels:
                raise ConfigError(f"{where}, input {name}: value {value} comes in twice")
            levels[value] = port.level
    for i, step in enumerate(program.steps):
        try:
            _check_step(step, levels, plan)
        except ConfigError as err:
            raise ConfigError(f"{where}, step {i} ({step.kind} of {step.name[:64]}): {err}") from err
        levels.update(dict.fromkeys(step.results, step.level))
    for name, port in program.outputs.items():
        _check_port(f"{where}, output {name}", port, plan.params.levels)
        if any(levels.get(value) != port.level for value in port.values):
            raise ConfigError(f"{where}, output {name}: a value of it is not made at level {port.level}")


def _check_port(where: str, port: Port, top: int) -> None:
    if not 1 <= len(port.values) <= MOST_PARTS or not 0 <= port.level <= top:
        raise ConfigError(f"{where}: has {len(port.values)} ciphertexts at level {port.level} of {top}")


def _check_step(step: Step, levels: Mapping[int, int], plan: Plan) -> None:
    """One step against the values before it. Whether an engine ends at the level stated, running it will show."""
    params, packing, row = plan.params, plan.packing, step.row
    terms = len(step.args) // row.args if row.summed == step.kind else 1
    if not step.args or len(step.args) != terms * row.args:
        raise ConfigError(f"takes another number of values than {len(step.args)}")
    if unknown := [a for a in step.args if a not in levels]:
        raise ConfigError(f"reads value {unknown[0]} before it is made")
    made = row.results or len(step.by)
    if len(step.results) != made or len(set(step.results)) != made or not levels.keys().isdisjoint(step.results):
        raise ConfigError(f"makes another number of values than {made}, or one that is there already")
    top = params.levels if row.refreshes else min(levels[a] for a in step.args)
    if not 0 <= step.level <= top:
        raise ConfigError(f"ends at level {step.level}, above the {top} it has")
    plains = len(step.args) if row.plain else 0
    if len(step.plains) != plains:
        raise ConfigError(f"meets {len(step.plains)} plaintexts, expected {plains}")
    for p in step.plains:
        if isinstance(p.vector, Diagonal) and not _listed(p.vector, plan.products):
            raise ConfigError(f"meets {p.key[:64]!r}, which no linear map of the plan has")
    if not 0 <= step.part < MOST_PARTS or abs(step.number) > LARGEST:
        raise ConfigError(f"has part {step.part} and number {step.number}")
    if bool(step.by) != row.rotates or (row.rotates and not row.gathers and len(step.by) != made):
        raise ConfigError(f"rotates by {len(step.by)} amounts")
    if row.gathers and (step.modulus or len(set(step.by)) != len(step.by) or not all(step.by)):
        raise ConfigError("adds a rotation twice, or one by nothing, or one that follows the position")
    if any(abs(k) >= packing.slots for k in step.by):
        raise ConfigError(f"rotates past the {packing.slots} slots")
    if not 0 <= step.modulus <= packing.n or (step.modulus and not (row.rotates and row.results)):
        raise ConfigError(f"has modulus {step.modulus}; a rotation follows the position modulo at most {packing.n}")
    if (step.kind == "linear") != (step.product is not None) or (step.product and step.product not in plan.products):
        named = step.product.key[:64] if step.product else ""
        raise ConfigError(f"names the linear map {named!r}, which the plan does not list")
    power = step.period >= 1 and not step.period & (step.period - 1)
    if row.refreshes and not (power and step.period <= params.slots and step.bound > 0):
        raise ConfigError(f"refreshes period {step.period} within {step.bound:g}; needs a power of two and a bound")
    if not row.refreshes and (step.period or step.bound or step.rows):
        raise ConfigError("has a period or a bound, which are a bootstrap's")
    if not (math.isfinite(step.bound) and abs(step.rows) <= 64):
        raise ConfigError(f"has a bound of {step.bound:g} that goes with the power {step.rows:g} of the row length")


def _listed(d: Diagonal, products: Mapping[Weight, LinearMap]) -> bool:
    m = products.get(d.weight)
    return m is not None and d.giant in m.giants and d.baby in m.babies
