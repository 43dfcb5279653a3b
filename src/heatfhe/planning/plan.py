# SPDX-License-Identifier: Apache-2.0
"""The Plan: a circuit bound to parameters, as programs of primitive steps. Pure data; weights are named only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from heatfhe.circuit import Circuit, facts_table
from heatfhe.ckks import Params
from heatfhe.errors import ConfigError, PlanError
from heatfhe.files import json_digest, plain, read_record, remade, write_json
from heatfhe.planning import legal
from heatfhe.planning.assemble import assemble
from heatfhe.planning.cost import CostTable, cost_table, cost_tables
from heatfhe.planning.graph import Graph
from heatfhe.planning.merged import merged
from heatfhe.planning.pack import LinearMap, Packing, PeriodicMlp
from heatfhe.planning.params import preset
from heatfhe.planning.placement import Placement, Rules, kept_bits, place
from heatfhe.planning.program import Program, ProgramName
from heatfhe.planning.programs import record, record_packed
from heatfhe.planning.scales import LOUD, magnitude, noise_bound
from heatfhe.planning.source import PlaintextSource
from heatfhe.planning.weights import Weight, parse_weight
from heatfhe.stages import Shape

KIND, VERSION = "heatfhe-plan", 1
PRECISION = 5.0  # bits that commands ask for: at most two bootstraps more, often fewer (docs/results/drift.md)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Programs by name, with everything an engine needs except weights and keys.

    ``circuit`` is the digest of the circuit it was made for, ``products`` the rotations of every linear map. Cached
    values are named ``<attention>/k`` and ``<attention>/v`` and keep one level over all programs.
    """

    circuit: str
    name: str
    params: Params
    shape: Shape
    context: int
    programs: Mapping[str, Program]
    products: Mapping[Weight, LinearMap]
    placement: str
    cost: str
    notes: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"Plan({', '.join(f'{k} {v}' for k, v in self.facts().items())})"

    def _repr_html_(self) -> str:
        return facts_table(f"Plan of {self.name}", self.facts())

    def facts(self) -> dict[str, Any]:
        """The plan in a few words, for people."""
        made = {
            name: f"{len(p.steps)} steps, {len(p.bootstraps())} bootstraps, {p.predicted_seconds:.3g} s"
            for name, p in self.programs.items()
        }
        secure = self.params.security_bits
        return {
            "circuit": self.name,
            "params": self.params.name,
            "security": f"{secure} bits" if secure else "none",
            "context": self.context,
            **made,
            "rotations": len(self.rotations),
            "digest": self.digest[:12],
        }

    def __post_init__(self) -> None:
        unknown = set(self.programs) - set(ProgramName)
        if unknown or not self.programs:
            raise ConfigError(f"a plan holds programs among {', '.join(ProgramName)}, got {sorted(self.programs)}")
        legal.check(self)

    @cached_property
    def packing(self) -> Packing:
        """The layouts its values have."""
        return Packing(self.shape, self.params.slots, self.prefix + self.context)

    @cached_property
    def rotations(self) -> tuple[int, ...]:
        """Every rotation a program may ask for, at any position."""
        return tuple(sorted(self._highest))

    @property
    def rotation_levels(self) -> tuple[int, ...]:
        """The highest level at which each of these is asked for, for a set whose keys go by level; else nothing."""
        if not dict(self.params.literal).get("key_levels"):
            return ()
        return tuple(self._highest[k] for k in self.rotations)

    @cached_property
    def _highest(self) -> dict[int, int]:
        """The highest level of a value that is rotated, by rotation."""
        found: dict[int, int] = {}
        for program in self.programs.values():
            for step in program.steps:
                level, by = step.level, step.by
                if step.product is not None:
                    level, by = level + 1, self.products[step.product].rotations
                elif step.modulus:
                    by = tuple(step.by[0] * k % self.packing.n for k in range(step.modulus))
                found.update({k: max(level, found.get(k, 0)) for k in by if k})
        return found

    @cached_property
    def bootstrap_periods(self) -> tuple[int, ...]:
        """Distinct slots of the values that are refreshed."""
        return tuple(sorted({s.period for p in self.programs.values() for s in p.bootstraps()}))

    @property
    def conjugation(self) -> bool:
        """Whether a program conjugates; a paired bootstrap does."""
        return any(s.row.conjugates for p in self.programs.values() for s in p.steps)

    @property
    def cache(self) -> dict[str, tuple[int, int]]:
        """Ciphertexts and level of every cached value."""
        ports = {k: p for program in self.programs.values() for k, p in program.outputs.items() if "/" in k}
        return {k: (len(p.values), p.level) for k, p in ports.items()}

    @property
    def prefill(self) -> int:
        """The most tokens of a prompt it takes at once: whole blocks, within the context; 0 without such a program."""
        if ProgramName.PREFILL not in self.programs:
            return 0
        places = len(self.programs[ProgramName.PREFILL].inputs["x"].values) * self.packing.t
        return min(self.context, places - self.prefix)

    def program(self, name: str) -> Program:
        """A program by name."""
        if name not in self.programs:
            held = ", ".join(self.programs)
            raise ConfigError(f"the plan has no program {name!r}; it holds {held}: plan again with it")
        return self.programs[name]

    def source(self, circuit: Circuit) -> PlaintextSource:
        """The plaintexts of this plan's steps, from its own circuit."""
        if circuit.digest != self.circuit:
            raise PlanError(f"plan {self.name} was made for another circuit; plan {circuit.name} again")
        return PlaintextSource(
            circuit, self.packing, self.products, self.params.reach, tight=self.tight, loud=self.loud
        )

    @property
    def prefix(self) -> int:
        """Positions of the public prefix; the cache has room for them beside its context."""
        return int(self.notes.get("prefix", 0))

    @property
    def tight(self) -> bool:
        """Whether values are carried as large as they can be, as plan(precision=...) does."""
        return bool(self.notes.get("tight", False))

    @property
    def loud(self) -> float:
        """How much larger the residual stream of a tight plan is carried than its squares fill the reach; plans made
        before there was such a factor have 1."""
        return float(self.notes.get("loud", 1.0))

    @cached_property
    def digest(self) -> str:
        """Identifies the plan."""
        return json_digest(self.as_json())

    def as_json(self) -> dict[str, Any]:
        """Plain JSON form."""
        return {
            **plain(self, ("circuit", "name", "context", "placement", "cost", "params", "shape", "notes")),
            "programs": [p.as_json() for p in self.programs.values()],
            "products": [p.as_json() for p in self.products.values()],
        }

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Plan:
        """Inverse of as_json; every part checks itself again."""
        programs = {p["name"]: p for p in body["programs"]}
        products = {parse_weight(p["key"]): p for p in body["products"]}
        return remade(cls, {**body, "programs": programs, "products": products})

    def save(self, path: str | Path) -> None:
        """Write as versioned JSON, atomically."""
        write_json(path, KIND, VERSION, self.as_json())

    @classmethod
    def load(cls, path: str | Path) -> Plan:
        """Read what save wrote; refuses altered or foreign files."""
        return read_record(path, KIND, (VERSION,), cls.from_json, remedy="plan again")


def plan(
    circuit: Circuit | str | Path,
    params: Params | str,
    *,
    placement: str = "exact",
    cost: CostTable | str | None = None,
    context: int | None = None,
    programs: Sequence[str] | None = None,
    rules: Rules | None = None,
    halve: bool | None = None,
    contract: bool = True,
    mlp: str = "auto",
    precision: float | None = None,
    prefill: int | None = None,
) -> Plan:
    """Bind a circuit to parameters: pack, record, place bootstraps, and write the steps. Names of both will do.

    >>> made = plan("out/mine/circuit", "native-16-r40")           # doctest: +SKIP
    >>> made.save("mine.plan")                                     # doctest: +SKIP

    ``mlp`` chooses the MLP's variant, A or B; auto plans both and keeps the one whose first program is cheaper.
    ``precision`` asks every refresh for so many bits of what its value is worth at the least, as far as domains and
    counts say (Rules.precision), and carries values as large as they can be: the reciprocals of softmaxes as their
    counts allow, sums and the residual stream beyond a bootstrap's reach. 0 does the latter alone. ``notes`` then has
    the refresh that keeps fewest bits, by program.

    ``context`` is the cache's capacity (the circuit's own if not given) without the positions of a public prefix. The
    first program that fills the cache fixes the level at which keys and values are kept, the others follow.
    ``prefill`` adds a program for so many tokens of a prompt at once. ``programs`` are generate and prompt if not
    given; of a circuit that classifies images there is one, classify.
    """
    circuit = circuit if isinstance(circuit, Circuit) else Circuit.load(circuit)
    programs = _programs(circuit, programs, context, prefill)
    params = preset(params) if isinstance(params, str) else params
    table = cost if isinstance(cost, CostTable) else cost_table(cost or default_cost(params))
    public = len(circuit.prefix)
    packing = Packing(circuit.shape, params.slots, public + (circuit.room if context is None else context))
    if halve is None:
        halve = dict(params.literal).get("times_i_levels", 0) == 0
    if mlp == "auto":
        variants = ("A", "B") if circuit.grid is None and PeriodicMlp(packing=packing, halve=halve).fits else ("A",)
        make = partial(plan, circuit, params, placement=placement, cost=table, context=context, programs=programs)
        make = partial(make, rules=rules, halve=halve, contract=contract, precision=precision, prefill=prefill)
        both = [make(mlp=m) for m in variants]
        return min(both, key=lambda p: p.program(programs[0]).predicted_seconds)
    tight, worst = precision is not None, {}
    if precision is not None:
        rules = replace(rules or Rules(), precision=precision)
    made: dict[str, Program] = {}
    products: dict[Weight, LinearMap] = {}
    cache: dict[str, int] = {}
    carried: dict[str, Any] = {"reach": params.reach, "contract": contract, "tight": tight}
    if prefill is not None and not halve:
        raise PlanError(f"{params.name}: a prefill multiplies by i, which costs a level there; plan without it")
    if circuit.grid is not None and not halve:
        raise PlanError(f"{params.name}: many rows at once multiply by i, which costs a level there; use another set")
    for name in (*map(str, programs), *([] if prefill is None else [str(ProgramName.PREFILL)])):
        if name == ProgramName.PREFILL:
            if prefill is None:
                raise ConfigError("a prefill is planned for a number of tokens: give prefill=")
            recording = record_packed(circuit, packing, prefill, **carried)
        elif name == ProgramName.CLASSIFY:
            recording = record_packed(circuit, packing, packing.context, **carried)
        else:
            recording = record(circuit, packing, name, halve=halve, mlp=mlp, **carried)
        fresh = {key: params.levels for key in ("next", "x") if key in recording.outputs}
        graph = recording.graph(levels=params.levels, fixed=cache, required={**fresh, **cache})
        placed = place(graph, params, table, algorithm=placement, rules=rules)
        worst[name] = _fewest_bits(graph, placed, params, rules)
        levels = dict(cache) or {
            key: placed.before[recording.home[value]] for key, value in recording.outputs.items() if "/" in key
        }
        program = assemble(recording, placed, params, name=name, inputs=levels, outputs={**levels, **fresh})
        program = merged(program, table, params.slots, recording.products.values())
        made[name] = replace(program, predicted_seconds=program.predicted_seconds + _unplaced(program, table))
        if name != ProgramName.EMBED:
            cache = levels
        products.update(recording.products)
    notes: dict[str, Any] = {"mlp": mlp, **({"prefix": public} if public else {})}
    if tight:
        notes |= {"tight": True, "loud": LOUD, "precision": precision, "fewest_bits": worst}
    if ProgramName.SAMPLE in made and (most := noise_bound(circuit)) > magnitude(circuit, "logits"):
        notes["noise"] = most  # else as in plans that say nothing of it
    return Plan(
        circuit=circuit.digest, name=circuit.name, params=params, shape=circuit.shape, context=packing.context - public,
        programs=made, products=dict(sorted(products.items(), key=lambda item: item[0].key)), placement=placement,
        cost=table.name,
        notes=notes,
    )  # fmt: skip


def _programs(
    circuit: Circuit, programs: Sequence[str] | None, context: int | None, prefill: int | None
) -> Sequence[str]:
    """The programs to plan: those of a text or that of an image, as the circuit is."""
    image = circuit.grid is not None
    if programs is None:
        programs = (ProgramName.CLASSIFY,) if image else (ProgramName.GENERATE, ProgramName.PROMPT)
    if other := [name for name in programs if (name == ProgramName.CLASSIFY) != image]:
        kind = "classifies images" if image else "continues text"
        raise PlanError(f"{circuit.name}: the circuit {kind} and has no program {other[0]!r}; leave it out")
    if image and (prefill is not None or context not in (None, circuit.shape.context)):
        raise PlanError(
            f"{circuit.name}: an image takes all {circuit.shape.context} rows at once and has no cache; leave context "
            "and prefill out"
        )
    return programs


def _fewest_bits(graph: Graph, placed: Placement, params: Params, rules: Rules | None) -> list[Any] | None:
    """Of refreshed values whose least size is known the one that keeps fewest bits of it, and how many."""
    pairs = [(graph.nodes[v], scale) for r in placed.refreshes for v, scale in zip(r.values, r.scales)]
    noise = None if rules is None else rules.noise
    kept = [(round(kept_bits(node, params, scale, noise), 1), node.name) for node, scale in pairs if node.least]
    return [*min(kept)[::-1]] if kept else None


def _unplaced(program: Program, table: CostTable) -> float:
    """Seconds that no placement counts: drops, and what steps cost more for being started by themselves."""
    levels, total = program.levels(), 0.0
    for s in program.steps:
        level = levels[s.args[0]]
        if s.kind == "drop":
            total += table.price({"drop": 1}, level)
        elif s.moves and table.started and not s.row.refreshes:
            work = s.row.counted(len(s.args), len(s.by), None)
            total += table.price(work, level, started=True) - table.price(work, level)
    return total


def default_cost(params: Params, device: str = "cpu") -> str:
    """The shipped cost table nearest to an engine, its set (or else its ring) and the device it runs on.

    Of a set that was measured on another device alone it is that one: another library's quoted prices are further away.
    """
    machine, ring = {"cuda": "h200"}.get(device, device), params.ring_dimension.bit_length() - 1
    own, there = ((f"{params.name}-{m}", f"{params.name}-lean-{m}") for m in (machine, "h200"))
    near = {
        "openfhe": (f"openfhe-cpu-{ring}", "openfhe-cpu-16"),
        "native": (*own, f"native-{machine}-{ring}", *there, "cheddar-h200"),
    }.get(params.engine, ("paper-a100",))
    return next(name for name in near if name in cost_tables())
