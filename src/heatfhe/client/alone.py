# SPDX-License-Identifier: Apache-2.0
"""Both roles in one process, with throwaway keys: for measurements and for a first look. It protects nothing."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from heatfhe.circuit import Circuit
from heatfhe.ckks import Params
from heatfhe.engine import Engine, KeyRequest, Keyring, MemoryKeys, key_request, load_engine, run
from heatfhe.errors import ConfigError
from heatfhe.planning import PRECISION, ProgramName, plan, preset

GPU_CACHE = 16 << 30  # plaintexts of a measurement at every level


def open_engine(
    name: str, request: KeyRequest, *, threads: int = 1, device: str = "cpu"
) -> tuple[Keyring, Engine[Any]]:
    """A throwaway keyring and an engine with its keys, both in this process."""
    if device != "cpu" and name != "native":
        raise ConfigError(f"the {name} engine runs on the CPU; --device {device} is for the native engine")
    if request.params.engine != name and name != "clear":
        raise ConfigError(f"{request.params.name} is a set of the {request.params.engine} engine, not of {name}")
    options: dict[str, Any] = {"threads": threads} if name in ("openfhe", "native") else {}
    if name == "native":
        load_engine(name)  # says what to install
        from heatfhe.client.keyring_native import NativeKeyring

        options["device"] = device
        if device == "cuda":
            options["cache_bytes"] = GPU_CACHE
        native = NativeKeyring(request, device=device, threads=threads)
        return native, load_engine(name)(request, MemoryKeys(dict(native.evaluation_keys())), **options)
    from heatfhe.client import load_keyring

    ring = load_keyring(name)(request)
    if name == "openfhe":
        from heatfhe.client.keyring_openfhe import OpenFHEKeyring

        assert isinstance(ring, OpenFHEKeyring)
        return ring, load_engine(name)(request, ring.process_keys(), **options)
    return ring, load_engine(name)(request, MemoryKeys(dict(ring.evaluation_keys())), **options)


def generate(
    circuit: Circuit | str | Path,
    prompt: str,
    tokens: int = 16,
    *,
    params: Params | str | None = None,
    threads: int | None = None,
    device: str = "cpu",
) -> str:
    """What a circuit writes after a prompt. In the clear, or, with a parameter set, under encryption in this process.

    Every token is chosen and fed back as a server does it. Keys are made for the call and forgotten: use a Client where
    the prompt must be kept from the machine that computes.

    >>> generate("default", "Once upon a time", 3)                                         # doctest: +SKIP
    ', there was'
    >>> generate("default", "Once upon a time", 3, params="insecure-native-12-r40")        # doctest: +SKIP
    ', there was'
    """
    circuit = circuit if isinstance(circuit, Circuit) else Circuit.from_pretrained(circuit)
    ids = circuit.encode(prompt)
    if not ids or tokens < 1:
        raise ConfigError(f"one token before and one to make are the least, got {len(ids)} and {tokens}")
    needed = len(ids) + tokens - 1
    if needed > circuit.room:
        most = circuit.room
        raise ConfigError(f"prompt and answer take {needed} positions, the circuit's context is {most}; ask for less")
    if params is None:
        return circuit.decode(circuit.generate(ids, tokens).tokens)
    params = preset(params) if isinstance(params, str) else params
    context = min(circuit.room, 1 << max(0, needed - 1).bit_length())
    made = plan(circuit, params, context=context, precision=PRECISION)
    cores = threads or os.cpu_count() or 1
    ring, engine = open_engine(params.engine, key_request(made), threads=cores, device=device)
    level = made.program(ProgramName.GENERATE).inputs["x"].level
    rows = ([engine.parse(ring.encrypt(made.packing.pack_residual(circuit.folded.token[t]), level=level))] for t in ids)
    chosen = []
    for parts in run(made, circuit, engine, rows, count=tokens):
        row = made.packing.unpack_vocabulary([ring.decrypt(engine.dump(p)) for p in parts])
        chosen.append(int(np.argmax(row)))
    return circuit.decode(chosen)
