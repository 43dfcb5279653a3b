# SPDX-License-Identifier: Apache-2.0
"""Reads runs of any kind into plain facts: training folders, circuits, plans, evaluations, drifts, demos. No torch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from heatfhe.circuit import Circuit
from heatfhe.ckks import Params
from heatfhe.errors import ConfigError, FileFormatError
from heatfhe.files import read_json, read_lines
from heatfhe.planning import CostTable, OperatorTally, Plan, cost_table, default_cost, level_path, plan, tally
from heatfhe.records import FAMILIES
from heatfhe.stages import sites

FILES = ("evaluation.json", "demo.json", "compare.json", "drift.json")
DEMO_KIND, DEMO_VERSION = "heatfhe-demo", 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteRow:
    """One site of a circuit: its count, and how often a token runs it."""

    site: str
    family: str
    layer: int
    count: int
    passes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CircuitFacts:
    """What the report shows of a circuit."""

    name: str
    digest: str
    sites: tuple[SiteRow, ...]
    shape: str

    def iterations(self) -> dict[str, int]:
        """Iterations per forward by family."""
        out = dict.fromkeys(FAMILIES, 0)
        for row in self.sites:
            out[row.family] += row.count * row.passes
        return out

    @property
    def levels(self) -> int:
        """Levels that solver iterations spend per forward."""
        return sum(FAMILIES[row.family].levels * row.count * row.passes for row in self.sites)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFacts:
    """What the report shows of a plan's program."""

    name: str
    circuit: str
    program: str
    params: Params
    prices: CostTable
    operators: tuple[OperatorTally, ...]
    levels: tuple[tuple[str, int], ...]
    rotations: int
    digest: str

    @property
    def bootstraps(self) -> int:
        """Bootstraps of one token of the program."""
        return sum(t.bootstraps for t in self.operators)

    @property
    def seconds(self) -> float:
        """Predicted price of one token, in the table's unit."""
        return sum(t.seconds for t in self.operators)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingFacts:
    """A training run's log, sorted by kind."""

    name: str
    updates: tuple[dict[str, Any], ...]
    validations: tuple[dict[str, Any], ...]
    distributions: tuple[dict[str, Any], ...]
    calibrated: dict[str, Any] | None


@dataclass(slots=True, kw_only=True)
class Material:
    """Everything found in the runs given."""

    circuits: list[CircuitFacts] = field(default_factory=list)
    plans: list[PlanFacts] = field(default_factory=list)
    trainings: list[TrainingFacts] = field(default_factory=list)
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    free_running: dict[str, Any] = field(default_factory=dict)
    drifts: list[dict[str, Any]] = field(default_factory=list)
    comparisons: list[dict[str, Any]] = field(default_factory=list)
    demos: list[dict[str, Any]] = field(default_factory=list)

    @property
    def empty(self) -> bool:
        """Whether nothing was found."""
        kinds = (self.circuits, self.plans, self.trainings, self.evaluations, self.drifts, self.comparisons, self.demos)
        return not any(kinds)


def gather(runs: Sequence[Path], *, params: Params | None = None, costs: CostTable | None = None) -> Material:
    """Read every run given; with ``params`` each circuit found is also planned, priced by ``costs``.

    A run is a folder (of training, a circuit, an evaluation, a comparison, a demo) or a JSON file (a plan, an
    evaluation, a comparison, the output of ``heat drift --json``).
    """
    found = Material()
    for run in runs:
        if run.is_dir():
            _folder(run, found, params, costs)
        else:
            _file(run, found, costs)
    if found.empty:
        raise ConfigError("the runs hold nothing to report; give folders of heat train, heat export or heat evaluate")
    return found


def _folder(run: Path, found: Material, params: Params | None, costs: CostTable | None) -> None:
    logs = [run] if (run / "log.jsonl").is_file() else []
    circuits = [folder for folder in (run, run / "circuit") if (folder / "circuit.json").is_file()][:1]
    files = [run / name for name in FILES if (run / name).is_file()]
    found.trainings += map(training_facts, logs)
    for folder in circuits:
        _circuit(folder, found, params, costs)
    for path in files:
        _file(path, found, costs)
    if not (logs or circuits or files):
        raise ConfigError(
            f"{run}: holds no log.jsonl, circuit.json, {', '.join(FILES[:-1])} or {FILES[-1]}; "
            "give a folder that heat train, export, evaluate or compare wrote"
        )


def _circuit(folder: Path, found: Material, params: Params | None, costs: CostTable | None) -> None:
    circuit = Circuit.load(folder)
    if any(c.digest == circuit.digest for c in found.circuits):
        return
    if any(c.name == circuit.name for c in found.circuits):  # two runs of one recipe: told apart by their folders
        folder_name = folder.parent.name if folder.name == "circuit" else folder.name
        circuit = replace(circuit, name=f"{circuit.name} ({folder_name})")
    found.circuits.append(circuit_facts(circuit))
    if params is not None:
        table = costs or cost_table(default_cost(params))
        found.plans.append(plan_facts(plan(circuit, params, cost=table), table))


def _file(path_: Path, found: Material, costs: CostTable | None) -> None:
    try:
        raw = json.loads(path_.read_bytes())
    except (OSError, ValueError) as err:
        raise FileFormatError(f"{path_}: not a readable JSON file ({err}); give a run's folder or its JSON") from err
    kind = raw.get("kind") if isinstance(raw, dict) else None
    if kind == "heatfhe-plan":
        made = Plan.load(path_)
        found.plans.append(plan_facts(made, costs or cost_table(default_cost(made.params))))
    elif kind == "heatfhe-evaluation":
        body = read_json(path_, kind, (1,))
        found.evaluations += body["evaluations"]
        found.free_running |= body.get("free_running", {})
    elif kind == "heatfhe-comparison":
        found.comparisons.append(read_json(path_, kind, (2,)))
    elif kind == DEMO_KIND:
        found.demos.append(read_json(path_, DEMO_KIND, (DEMO_VERSION,)))
    elif isinstance(raw, list) and raw and all("collapsed_by_position" in row for row in raw):
        found.drifts += raw
    else:
        raise FileFormatError(
            f"{path_}: neither a plan, an evaluation, a comparison, a demo nor a drift; see heat report --help"
        )


def circuit_facts(circuit: Circuit) -> CircuitFacts:
    """Counts of every site, in depth order."""
    calibration, s = circuit.calibration, circuit.shape
    counts = calibration.counts()
    rows = []
    for site in sites(circuit.stages):
        owner = site.name.rpartition("/")[0]
        passes = calibration.softmaxes[owner].fit.passes if site.family == "softmax_refine" else 1
        row = SiteRow(site=site.name, family=site.family, layer=site.layer, count=counts[site.name], passes=passes)
        rows.append(row)
    shape = f"{s.layers} layers, width {s.width}, {s.heads} heads, vocabulary {s.vocabulary}, context {s.context}"
    return CircuitFacts(name=circuit.name, digest=circuit.digest, sites=tuple(rows), shape=shape)


def plan_facts(made: Plan, prices: CostTable) -> PlanFacts:
    """Operators and levels of a plan's first program: the one that makes a token."""
    program = "generate" if "generate" in made.programs else next(iter(made.programs))
    return PlanFacts(
        name=made.name,
        circuit=made.circuit,
        program=program,
        params=made.params,
        prices=prices,
        operators=tuple(tally(made, program, prices).values()),
        levels=tuple(level_path(made.program(program))),
        rotations=len(made.rotations),
        digest=made.digest,
    )


def training_facts(folder: Path) -> TrainingFacts:
    """A run's log; a half-written last line is left out."""
    rows = read_lines(folder / "log.jsonl")

    def of(kind: str) -> tuple[dict[str, Any], ...]:
        return tuple(r for r in rows if r.get("kind") == kind)

    name = folder.name if folder.name != "run" else folder.parent.name
    return TrainingFacts(
        name=name,
        updates=of("update"),
        validations=of("validation"),
        distributions=of("distributions"),
        calibrated=next(iter(of("calibrated")), None),
    )


def telling_sites(run: TrainingFacts, most: int = 4) -> list[str]:
    """The site of each family whose most likely count fell furthest: what a distribution over training should show."""
    if not run.distributions:
        return []
    first, last = run.distributions[0]["modes"], run.distributions[-1]["modes"]
    best: dict[str, tuple[int, str]] = {}
    for site in run.distributions[-1]["p"]:
        fall, suffix = first.get(site, 0) - last.get(site, 0), site.rpartition("/")[2]
        if suffix not in best or fall > best[suffix][0]:
            best[suffix] = (fall, site)
    return [site for _, site in sorted(best.values(), reverse=True)][:most]
