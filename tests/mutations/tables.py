# SPDX-License-Identifier: Apache-2.0
"""Cost and noise tables, calibrations, plans, and the directory of a circuit."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from heatfhe.approx import softmax_solvers
from heatfhe.circuit import Circuit
from heatfhe.circuit.forward import one_hot
from heatfhe.ckks.params import Params
from heatfhe.engine.noise import NoiseTable, PeriodNoise
from heatfhe.planning import Plan, plan
from heatfhe.planning.cost import INSTRUCTIONS, CostTable, cost_table
from heatfhe.records import Calibration
from heatfhe.stages import stage_to_json
from tests.mutations.law import Format, hold, json_file, same, sealed, tensor_form, tensors_in
from tests.mutations.mutator import changed, file_of, plain, scrambled, tensors_of
from tests.tiny import tiny_circuit

PARAMS = Params(
    name="insecure-mutations", engine="openfhe", ring_dimension=256, levels=9, scale_bits=35.0, log_qp=900.0,
    noise=1e-6, promised_bits=30.0, reach=1000.0, literal=(("depth", 9),),
)  # fmt: skip


def use_cost(table: CostTable) -> None:
    for word in INSTRUCTIONS:
        if word in table.seconds:
            prices = (table.price({word: 2}, level, started=s) for level in (0, 3, 60) for s in (False, True))
            hold(all(price >= 0 for price in prices), "a negative price")
    hold(all(table.refresh(1 << k, 1024) >= 0 for k in range(11)), "a negative price")
    dearer = (table.refresh(1 << k, 1024, pair=True) >= table.refresh(1 << k, 1024) for k in range(11))
    hold(all(dearer), "a pair for less than one refresh")


def use_noise(table: NoiseTable) -> None:
    found = [table.at(bound, period) for bound in (0.5, 1.0, 99.0) for period in (1, 64, 4096)]
    hold(all(np.isfinite([n.spread, n.bias]).all() for n in found), "a noise that is not finite")
    hold(all(np.isfinite(table.bits(m)) for m in table.largest), "bits that are not finite")


def use_calibration(c: Calibration) -> None:
    hold(len(c.floors()) == len(c.counts()), "a site without a count")
    hold(all(0 <= n <= 1000 for n in c.counts().values()), "a count nobody can run")
    hold(sum(c.iterations().values()) >= 0, "fewer than no iterations")
    for row in c.softmaxes.values():
        softmax_solvers(row.fit, row.init_count, row.refine_count, np.arange(1.0, 4.0)[:, None])


def use_plan(p: Plan) -> None:
    n = p.packing.n
    hold(all(0 < abs(k) < max(n, p.params.slots) for k in p.rotations), "a rotation past the slots")
    hold(all(1 <= k <= p.params.slots for k in p.bootstrap_periods), "a period past the slots")
    hold(p.conjugation in (True, False) and len(p.digest) == 64 and isinstance(p.cache, dict), "not a plan")
    for program in p.programs.values():
        made = {v for port in program.inputs.values() for v in port.values}
        for step in program.steps:
            hold(set(step.args) <= made, "a value is read before it is made")
            made.update(step.results)
        hold(all(set(port.values) <= made for port in program.outputs.values()), "an output nobody makes")


@lru_cache(maxsize=1)
def circuit() -> Circuit:
    return replace(tiny_circuit(layers=1, sequences=8), tokenizer={"tokenizer.json": b'{"a": 1}'})


@lru_cache(maxsize=1)
def small_plan() -> Plan:
    return plan(circuit(), PARAMS, programs=("generate", "prompt"), placement="greedy", mlp="A")


def noise_table() -> NoiseTable:
    column = {0.1: 1e-7, 1.0: 1e-6, 16.0: 1e-5}
    return NoiseTable(
        name="n", engine="native", params="p", hardware="a desk", samples=32, sigma=column, constant=column,
        largest={m: 4 * s for m, s in column.items()},
        periods={1: PeriodNoise(1e-7, -1e-9), 64: PeriodNoise(1e-6, 0.0)},
    )  # fmt: skip


def tables(folder: Path) -> Iterator[Format]:
    old = cost_table("openfhe-cpu-16")
    new = replace(old, pairs=old.bootstrap, seconds={**old.seconds, "drop": (0.1, 0.2)}, started={"add": (0.3,)})
    for table in (old, new):
        name = "cost" if table is old else "cost, version 2"
        yield json_file(name, 2, folder, "cost-table", table.version, table.as_json(), CostTable.load, use_cost)
    yield json_file("noise", 3, folder, "noise-table", 2, noise_table().as_json(), NoiseTable.load, use_noise)
    body = circuit().calibration.as_json()
    yield json_file("calibration", 4, folder, "heatfhe-calibration", 1, body, Calibration.load, use_calibration)
    yield json_file("plan", 4, folder, "heatfhe-plan", 1, small_plan().as_json(), Plan.load, use_plan)


def circuit_folder(folder: Path) -> Format:
    """The directory of a circuit: one of its files changed, its hash and the header's digest right again."""
    circuit().save(folder / "circuit")
    good = {
        str(p.relative_to(folder / "circuit")): p.read_bytes() for p in (folder / "circuit").rglob("*") if p.is_file()
    }
    body = json.loads(good["circuit.json"])["body"]

    def change(rng: random.Random) -> dict[str, bytes]:
        files, header = dict(good), {**body, "files": dict(body["files"])}
        how = rng.randrange(10)
        if how < 4:
            return files | {"circuit.json": file_of("heatfhe-circuit", 1, header, rng)}
        if how < 7:
            files["calibration.json"] = file_of("heatfhe-calibration", 1, circuit().calibration.as_json(), rng)
        elif how < 9:
            files["weights.safetensors"] = tensors_of(good["weights.safetensors"], rng)
        else:
            header["files"] = changed(header["files"], rng)
            if isinstance(header["files"], dict) and rng.random() < 0.5:  # left out of the list, and altered
                gone = rng.choice(list(header["files"]) or [""])
                header["files"].pop(gone, None)
                files = {k: v if k != gone else scrambled(v, rng) for k, v in files.items()}
            return files | {"circuit.json": sealed("heatfhe-circuit", 1, header)}
        header["files"] = {k: hashlib.sha256(files[k]).hexdigest() for k in body["files"]}
        return files | {"circuit.json": sealed("heatfhe-circuit", 1, header)}

    def read(files: dict[str, bytes]) -> None:
        for name, data in files.items():
            (folder / "circuit" / name).write_bytes(data)
        made = Circuit.load(folder / "circuit")
        header = plain(files["circuit.json"])["body"]
        again = {
            "name": made.name, "notes": dict(made.notes), "stages": [stage_to_json(s) for s in made.stages],
            "shape": {k: getattr(made.shape, k) for k in made.shape.__slots__}, "files": header["files"],
        }  # fmt: skip
        hold(same(again, header), "the header is read as something else")
        hold(same(made.calibration.as_json(), plain(files["calibration.json"])["body"]), "the calibration is another")
        hold(
            all(hashlib.sha256(files[k]).hexdigest() == v for k, v in header["files"].items())
            and {f"tokenizer/{k}": v for k, v in made.tokenizer.items()}
            == {k: files[k] for k in header["files"] if k.startswith("tokenizer/")}
            and {"weights.safetensors", "calibration.json"} <= set(header["files"]),
            "a file is not under its hash",
        )
        hold(
            tensors_in(files["weights.safetensors"]) == {k: tensor_form(v) for k, v in made.weights.items()}, "weights"
        )
        use_calibration(made.calibration)
        with np.errstate(all="ignore"):
            logits = made.run([1, 2, 3])
            hold(logits.shape == (3, made.shape.vocabulary), "another shape of logits")
            if made.calibration.argmax is not None:
                one_hot(made, logits)

    return Format("circuit", 5, change, read)
