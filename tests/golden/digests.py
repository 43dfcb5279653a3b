# SPDX-License-Identifier: Apache-2.0
"""Digests of parameter sets, circuits, plans and what follows from them: configuration ids, tallies, tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from heatfhe.assets import default_circuit
from heatfhe.circuit import Circuit
from heatfhe.ckks.params import Params
from heatfhe.ckks.presets import native_presets, native_set
from heatfhe.files import file_digest, json_digest
from heatfhe.planning import ALGORITHMS, Plan, cost_table, plan
from heatfhe.planning.params import preset, presets
from heatfhe.planning.tally import key_bytes, tally
from heatfhe.server import ModelSource, Settings
from heatfhe.server.work.program import describe_model
from tests.planning.clear_run import clear_params

EMBEDDED = ("calibrated", "heat")
TOO_SHALLOW = "insecure-native-tiny"  # three levels: no plan of an attention exists
EVERY = ("generate", "prompt", "logits", "sample", "embed")
PROMPT, COUNT = (5, 17, 3, 200), 12


@lru_cache(maxsize=2)
def embedded(kind: str) -> Circuit:
    """A circuit of the package."""
    return Circuit.load(default_circuit(kind))


def first_prices(params: Params) -> str | None:
    """The table that plans of a set were made with when these digests were taken."""
    return "cheddar-h200" if params.engine == "native" else None


def whole_plan(circuit: Circuit) -> Plan:
    """Every program, on 64 slots."""
    return plan(circuit, clear_params(64), programs=EVERY)


def plans_of_tiny(circuit: Circuit) -> dict[str, Callable[[], Plan]]:
    """Makers of plans of the tiny circuit: every preset, program, placement and option."""
    out: dict[str, Callable[[], Plan]] = {"clear-64, every program": lambda: whole_plan(circuit)}

    def add(name: str, **options: Any) -> None:
        params = options.pop("params", None) or clear_params(64)
        out[name] = lambda: plan(circuit, params, **options)

    for name, params in presets().items():
        if name != TOO_SHALLOW:
            add(name, params=params, cost=first_prices(params))
    for name in ("insecure-native-11", "insecure-openfhe-12"):
        add(f"{name}, every program", params=preset(name), programs=EVERY, cost=first_prices(preset(name)))
    for program in EVERY[:-1]:
        add(f"clear-64, {program} alone", programs=(program,))
    for placement in ALGORITHMS:
        add(f"clear-64, {placement}, unit prices", placement=placement, cost="unit")
    for mlp in ("A", "B"):
        add(f"clear-64, MLP {mlp}", mlp=mlp)
    add("clear-32, two levels a pair", params=clear_params(32, levels=10, pair_levels=2))
    add("clear-64, narrow window", params=clear_params(64, reach=2.0))
    add("clear-64, context 8", context=8)
    add("clear-64, not halved", halve=False)
    add("clear-64, not contracted", contract=False)
    return out


def plans_of_embedded() -> dict[str, Callable[[], Plan]]:
    """Makers of plans of the circuits in the package."""
    wanted = [("heat", "insecure-native-12-r40"), ("heat", "insecure-openfhe-12"), ("heat", "native-16-r40")]
    wanted += [("calibrated", "insecure-native-12-r40")]
    out: dict[str, Callable[[], Plan]] = {}

    def add(label: str, kind: str, name: str, **options: Any) -> None:
        out[label] = lambda: plan(embedded(kind), preset(name), cost=first_prices(preset(name)), **options)

    for kind, name in wanted:
        add(f"{kind}, {name}", kind, name)
    toy = "insecure-native-12-r40"
    add(f"heat, {toy}, sampled", "heat", toy, programs=("generate", "prompt", "sample"))
    return out


def circuit_files(folder: Path) -> dict[str, str]:
    """SHA-256 of every file of a circuit's folder that circuit.json speaks of, itself included."""
    names = ["circuit.json", "calibration.json", "weights.safetensors"]
    names += [f"tokenizer/{p.name}" for p in sorted((folder / "tokenizer").glob("*"))]
    return {name: file_digest(folder / name) for name in names}


def tallies(made: Plan) -> dict[str, str]:
    """Counts and prices of every program, prices to twelve digits since sums may be taken in another order."""
    out = {"key bytes": str(key_bytes(made)), "rotations": json_digest(list(made.rotations))}
    for name in made.programs:
        for table in ("unit", "openfhe-cpu-12", "cheddar-h200"):
            rows = {}
            for operator, row in tally(made, name, cost_table(table)).items():
                rows[operator] = {k: f"{v:.12g}" if isinstance(v, float) else v for k, v in asdict(row).items()}
            out[f"{name}, {table}"] = json_digest(rows)
    return out


def configuration(circuit: Circuit, folder: Path) -> dict[str, str]:
    """What a server of the tiny circuit tells clients."""
    with TemporaryDirectory() as place:
        path = Path(place) / "tiny.plan"
        params = preset("insecure-native-11")
        plan(circuit, params, programs=("generate", "prompt", "sample"), cost=first_prices(params)).save(path)
        source = ModelSource(name="tiny", plan=path, circuit=folder)
        config = describe_model(source, Settings(folder=Path(place), models=(source,))).config
    return {"config_id": config.config_id, "bundle": config.bundle, "layout": json_digest(dict(config.layout))}


def everything(circuit: Circuit, folder: Path) -> dict[str, Any]:
    """All of them, by what they are of."""
    return {
        "params": {name: p.digest for name, p in presets().items()},
        "native sets": {name: native_set(p).older[1].hex() for name, p in native_presets().items()},
        "native sets, version 2": {name: native_set(p).hash.hex() for name, p in native_presets().items()},
        "circuits": {"tiny": circuit.digest, **{k: embedded(k).digest for k in EMBEDDED}},
        "files": {"tiny": circuit_files(folder), **{k: circuit_files(default_circuit(k)) for k in EMBEDDED}},
        "plans of tiny": {name: make().digest for name, make in plans_of_tiny(circuit).items()},
        "plans of embedded": {name: make().digest for name, make in plans_of_embedded().items()},
        "tallies": tallies(whole_plan(circuit)),
        "configuration": configuration(circuit, folder),
        "tokens": {k: embedded(k).generate(PROMPT, COUNT).tokens for k in EMBEDDED},
    }
