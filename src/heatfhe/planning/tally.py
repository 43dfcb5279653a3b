# SPDX-License-Identifier: Apache-2.0
"""What a plan's program does and costs, by operator: bootstraps, products, key switches, levels, predicted seconds."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from heatfhe.ckks import key_ids, native_set, upload_bytes
from heatfhe.planning.cost import CostTable, plain_words
from heatfhe.planning.pack import LinearMap
from heatfhe.planning.plan import Plan
from heatfhe.planning.program import Program, Step
from heatfhe.planning.vectors import Diagonal
from heatfhe.planning.weights import Weight

OPERATORS = ("embedding", "layernorm", "linear", "cache", "attention", "softmax", "gelu", "head", "argmax")


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorTally:
    """One operator's share of a program.

    ``plain_products`` are those of linear maps, ``masks`` those with other vectors, ``scalars`` those with one number.
    Conjugations inside paired bootstraps belong to the bootstrap and are not counted.
    """

    operator: str
    full: int
    sparse: int
    paired: int
    plain_products: int
    masks: int
    scalars: int
    products: int
    relinearisations: int
    hoisted: int
    rotations: int
    conjugations: int
    levels: int
    seconds: float
    bootstrap_seconds: float

    @property
    def bootstraps(self) -> int:
        """All bootstraps, a paired one counted once."""
        return self.full + self.sparse

    @property
    def key_switches(self) -> int:
        """Rotations, conjugations and relinearisations."""
        return self.hoisted + self.rotations + self.conjugations + self.relinearisations

    def as_json(self) -> dict[str, Any]:
        """Plain JSON form."""
        return {name: getattr(self, name) for name in self.__slots__}


def tally(plan: Plan, program: str, cost: CostTable) -> dict[str, OperatorTally]:
    """Counts and prices of a program by operator, in the order of a token; operators of one's own come after."""
    chosen, products = plan.program(program), plan.products
    slots, levels = plan.params.slots, chosen.levels()
    out = {}
    found = dict.fromkeys(s.operator for s in chosen.steps)
    for operator in [*(o for o in OPERATORS if o in found), *(o for o in found if o not in OPERATORS)]:
        steps = [s for s in chosen.steps if s.operator == operator]
        work: Counter[str] = Counter()
        seconds = refreshed = 0.0
        for s in steps:
            one = s.row.counted(len(s.args), len(s.by), None if s.product is None else products[s.product])
            work.update(plain_words(one))
            if s.row.refreshes:
                refreshed += cost.refresh(s.period, slots, pair=len(s.results) == 2)
            else:
                seconds += cost.price(one, levels[s.args[0]], started=s.moves)
        boots = [s for s in steps if s.row.refreshes]
        mapped = sum(_diagonals(s, products) for s in steps)
        scalars = sum(p.vector is None for s in steps if s.row.levels for p in s.plains)
        out[operator] = OperatorTally(
            operator=operator,
            full=sum(1 for s in boots if s.period >= plan.packing.n),
            sparse=sum(1 for s in boots if s.period < plan.packing.n),
            paired=sum(1 for s in boots if len(s.results) == 2),
            plain_products=mapped,
            masks=work["multiply_plain"] - mapped - scalars,
            scalars=scalars,
            products=work["multiply"] + work["tensor"],
            relinearisations=work["multiply"] + work["relinearise"],
            hoisted=work["rotate_hoisted"] + work["rotate_summed"],
            rotations=work["rotate"],
            conjugations=work["conjugate"],
            levels=depth(chosen, operator),
            seconds=seconds + refreshed,
            bootstrap_seconds=refreshed,
        )
    return out


def _diagonals(step: Step, products: Mapping[Weight, LinearMap]) -> int:
    """Plaintexts of linear maps that a step meets."""
    if step.product is not None:
        return products[step.product].plaintexts
    return sum(isinstance(p.vector, Diagonal) for p in step.plains)


def depth(program: Program, operator: str) -> int:
    """Levels an operator spends on the longest path through the program."""
    spent: dict[int, tuple[int, int]] = {}  # value -> (levels on its longest path, of which this operator's)
    longest = (0, 0)
    for s in program.steps:
        arrived = max((spent.get(a, (0, 0)) for a in s.args), default=(0, 0))
        one = s.row.levels
        now = (arrived[0] + one, arrived[1] + (one if s.operator == operator else 0))
        spent.update(dict.fromkeys(s.results, now))
        longest = max(longest, now)
    return longest[1]


def path(program: Program) -> list[tuple[str, int]]:
    """The level after every bootstrap and every product on the longest path: place and level, in order."""
    made: dict[int, int] = {}
    spent: dict[int, int] = {}
    for i, s in enumerate(program.steps):
        for r in s.results:
            made[r] = i
            spent[r] = max((spent.get(a, 0) for a in s.args), default=0) + s.row.levels
    if not spent:
        return []
    value = max(spent, key=lambda v: (spent[v], v))
    out: list[tuple[str, int]] = []
    while value in made:
        s = program.steps[made[value]]
        if s.row.levels or s.row.refreshes:
            out.append((s.name, s.level))
        inside = [a for a in s.args if a in made]
        if not inside:
            break
        if s.row.refreshes:
            inside = [s.args[s.results.index(value)]]
            if inside[0] not in made:
                break
        value = max(inside, key=lambda v: (spent[v], v))
    return out[::-1]


def key_bytes(plan: Plan) -> int:
    """Bytes of a client's evaluation keys, the bootstrap's own among them.

    Exact on the native engine; on others an estimate, up to twice too much (OpenFHE's toy set: 892 MB for 524 MB).

    A native key is, per digit, one half of 32-bit words over all its primes; the other half is a seed.
    """
    params = plan.params
    if params.engine == "native":
        native = native_set(params)
        ids = key_ids(native, plan.rotations, plan.conjugation, plan.bootstrap_periods, plan.rotation_levels)
        return upload_bytes(native, ids)
    digits = int(dict(params.literal).get("digits", 3))
    own = 2 * math.isqrt(params.slots) if plan.bootstrap_periods else 0  # rotations of the bootstrap itself, about
    keys = 1 + len(plan.rotations) + int(plan.conjugation) + own
    return int(2 * keys * digits * params.ring_dimension * params.log_qp / 8)


def weight_bytes(plan: Plan, program: str) -> int:
    """Bytes of all encoded plaintexts of linear maps, each once at every level of its use.

    Exact on the native engine: 32-bit words over the primes of the level and, inside a map, the special primes. On
    others an estimate by the bits of the scale.
    """
    params, chosen = plan.params, plan.program(program)
    native = native_set(params) if params.engine == "native" else None
    levels, total = chosen.levels(), 0.0
    seen: set[tuple[Weight, int]] = set()  # the blocks of a prefill share a map
    for s in chosen.steps:
        if not (count := _diagonals(s, plan.products)):
            continue
        if s.product is not None:
            if (s.product, levels[s.args[0]]) in seen:
                continue
            seen.add((s.product, levels[s.args[0]]))
        if native is None:
            total += count * params.ring_dimension * (s.level + 2) * params.scale_bits / 8
            continue
        limbs = len(native.chain.rows(levels[s.args[0]] + native.floor))
        extra = len(native.chain.special) if s.product is not None else 0
        total += 4 * count * params.ring_dimension * (limbs + extra)
    return int(total)
