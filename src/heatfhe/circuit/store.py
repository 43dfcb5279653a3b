# SPDX-License-Identifier: Apache-2.0
"""A circuit as a directory: circuit.json (with the hash of every file), weights, calibration, tokenizer."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from heatfhe.errors import ConfigError, FileFormatError
from heatfhe.files import atomic_directory, json_digest, read_record, write_json
from heatfhe.records import Calibration
from heatfhe.stages import Shape, Stage, stage_from_json, stage_to_json

if TYPE_CHECKING:
    from heatfhe.circuit.circuit import Circuit

KIND, VERSION = "heatfhe-circuit", 1
TOKENIZER = "tokenizer/"
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")
WEIGHTS, CALIBRATION, HEADER = "weights.safetensors", "calibration.json", "circuit.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What circuit.json says. ``files`` has the hash of every other file: none is read without one."""

    name: str
    shape: Shape
    stages: tuple[Stage, ...]
    notes: Mapping[str, Any]
    files: Mapping[str, str]

    def __post_init__(self) -> None:
        if missing := {WEIGHTS, CALIBRATION} - set(self.files):
            raise ConfigError(f"no hash is given for {sorted(missing)[0]}")

    def as_json(self) -> dict[str, Any]:
        """Plain JSON form."""
        return {**_header(self), "files": dict(self.files)}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Head:
        """Inverse of as_json."""
        stages = tuple(stage_from_json(s) for s in body["stages"])
        return cls(**{**body, "shape": Shape(**body["shape"]), "stages": stages})


def circuit_digest(circuit: Circuit) -> str:
    """SHA-256 over stages, shape, calibration and weights."""
    sha = hashlib.sha256(json_digest([_header(circuit), circuit.calibration.as_json()]).encode())
    for name in sorted(circuit.weights):
        tensor = circuit.weights[name]
        sha.update(f"{name}:{tensor.dtype}:{tensor.shape};".encode())
        sha.update(tensor.tobytes())
    return sha.hexdigest()


def save(circuit: Circuit, folder: str | Path) -> None:
    """Write the directory, whole or not at all."""
    with atomic_directory(folder) as partial:
        files = {WEIGHTS: save_tensors(dict(circuit.weights))}
        files |= {f"tokenizer/{name}": data for name, data in circuit.tokenizer.items()}
        circuit.calibration.save(partial / CALIBRATION)
        files[CALIBRATION] = (partial / CALIBRATION).read_bytes()
        for name, data in files.items():
            target = partial / name
            target.parent.mkdir(exist_ok=True)
            target.write_bytes(data)
        hashes = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
        write_json(partial / HEADER, KIND, VERSION, {**_header(circuit), "files": hashes})


def load(folder: str | Path) -> dict[str, Any]:
    """The constructor's arguments, read from a directory; every byte is checked against its hash first."""
    folder = Path(folder)
    if not folder.is_dir():
        raise FileFormatError(f"{folder}: no such circuit directory; make one with: heat export")
    head = read_record(folder / HEADER, KIND, (VERSION,), Head.from_json, remedy="export the circuit again")
    data = {name: _checked(folder, name, digest) for name, digest in head.files.items()}
    try:
        weights = load_tensors(data[WEIGHTS])
    except (SafetensorError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as err:
        raise FileFormatError(f"{folder / WEIGHTS}: cannot be read ({err}); export the circuit again") from err
    return {
        "name": head.name,
        "shape": head.shape,
        "stages": head.stages,
        "weights": weights,
        "calibration": Calibration.load(folder / CALIBRATION),
        "tokenizer": {n.split("/", 1)[1]: d for n, d in data.items() if n.startswith(TOKENIZER)},
        "notes": head.notes,
    }


def _header(circuit: Circuit | Head) -> dict[str, Any]:
    return {
        "name": circuit.name,
        "shape": {k: getattr(circuit.shape, k) for k in circuit.shape.__slots__},
        "stages": [stage_to_json(s) for s in circuit.stages],
        "notes": dict(circuit.notes),
    }


def _checked(folder: Path, name: str, digest: str) -> bytes:
    if not (name in (WEIGHTS, CALIBRATION) or (name.startswith(TOKENIZER) and _PLAIN.fullmatch(name, len(TOKENIZER)))):
        raise FileFormatError(
            f"{folder / HEADER}: file name {name[:64]!r} leaves the circuit's directory; do not trust this circuit"
        )
    try:
        data = (folder / name).read_bytes()
    except OSError as err:
        raise FileFormatError(f"{folder / name}: missing or unreadable ({err}); export the circuit again") from err
    if hashlib.sha256(data).hexdigest() != digest:
        raise FileFormatError(
            f"{folder / name}: its hash does not match circuit.json; the file was altered or cut short"
        )
    return data
