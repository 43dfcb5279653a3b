# SPDX-License-Identifier: Apache-2.0
"""A plan behind the server: its public configuration for clients, and the runner a worker opens for one key set."""

from __future__ import annotations

import hashlib
import math
from typing import Any

from heatfhe.approx import gumbel_bound
from heatfhe.circuit import Circuit
from heatfhe.engine import Runner, key_request, load_engine
from heatfhe.errors import ConfigError
from heatfhe.planning import Plan, ProgramName, key_bytes
from heatfhe.server.models import ServedModel
from heatfhe.server.settings import ModelSource, Settings
from heatfhe.server.store.key_cache import KeyCache, cache_folder
from heatfhe.server.store.keys import FolderKeys
from heatfhe.server.store.objects import Objects
from heatfhe.server.store.shelf import unshelve
from heatfhe.server.work.orders import Opening
from heatfhe.stages import Embed, Patches, centred
from heatfhe.wire import Message, ModelConfig, Price

_DTYPES = {"float16": "F16", "float32": "F32", "float64": "F64"}


def load_models(settings: Settings) -> dict[str, ServedModel]:
    """Every model of the settings, loaded and described."""
    return {source.name: describe_model(source, settings) for source in settings.models}


def describe_model(source: ModelSource, settings: Settings) -> ServedModel:
    """What clients are told of a model."""
    plan, circuit = Plan.load(source.plan), Circuit.load(source.circuit)
    plan.source(circuit)  # refuses a circuit the plan was not made for
    image = circuit.grid is not None
    first, last = (ProgramName.CLASSIFY,) * 2 if image else (ProgramName.PROMPT, ProgramName.GENERATE)
    single, step = plan.program(first), plan.program(last)
    engine = "clear" if settings.simulate else plan.params.engine
    packing = plan.packing.tokens if image else plan.packing
    sample = plan.programs.get(ProgramName.SAMPLE)
    bundle = make_bundle(plan, circuit)
    fits = plan.notes.get("noise", circuit.calibration.magnitudes.get("logits", 0.0))
    noise_bound = float(fits) if sample is not None else 0.0
    config = ModelConfig(
        model=source.name,
        engine=engine,
        params=plan.params,
        plan=plan.digest,
        circuit=circuit.digest,
        programs=tuple(sorted(plan.programs)),
        rotations=plan.rotations,
        rotation_levels=plan.rotation_levels,
        conjugation=plan.conjugation,
        bootstrap_periods=plan.bootstrap_periods,
        layout={
            "input": {"size": plan.shape.width, "period": packing.D, "level": step.inputs["x"].level},
            "vocabulary": {
                "size": plan.shape.vocabulary,
                "period": packing.V,
                "parts": packing.vocabulary_parts,
                "level": sample.inputs["noise"].level if sample is not None else 0,
            },
            **(_image(plan) if image else _prefill(plan)),
        },
        vocabulary=plan.shape.vocabulary,
        context=plan.context,
        bundle=hashlib.sha256(bundle).hexdigest(),
        noise_bound=noise_bound,
        max_temperature=highest_temperature(circuit, noise_bound, source.max_temperature),
        price=Price(
            seconds_per_prompt_token=0.0 if image else single.predicted_seconds,
            seconds_per_token=step.predicted_seconds,
            key_bytes=key_bytes(plan),
            bootstraps_per_token=len(step.bootstraps()),
        ),
        limits={
            "chunk_bytes": settings.chunk_bytes,
            "client_bytes": settings.client_bytes,
            "max_steps": settings.max_steps,
            "request_bytes": settings.request_bytes,
        },
    )
    return ServedModel(config=config, bundle=bundle, source=source)


def _image(plan: Plan) -> dict[str, dict[str, int]]:
    """How an image comes: rows to a ciphertext, ciphertexts, and their level."""
    port = plan.program(ProgramName.CLASSIFY).inputs["x"]
    return {"image": {"tokens": plan.packing.t, "blocks": len(port.values), "level": port.level}}


def _prefill(plan: Plan) -> dict[str, dict[str, int]]:
    """How a prompt comes at once: tokens to a ciphertext, ciphertexts, their level, from how many it is quicker, and
    behind a public prefix the place of the first."""
    if not plan.prefill:
        return {}
    program, single = plan.program(ProgramName.PREFILL), plan.program(ProgramName.PROMPT)
    least = math.ceil(program.predicted_seconds / single.predicted_seconds) if single.predicted_seconds else 1
    port = program.inputs["x"]
    sizes = {"tokens": plan.packing.t, "blocks": len(port.values), "level": port.level}
    behind = {"first": plan.prefix} if plan.prefix else {}
    return {"prefill": {**sizes, "least": max(1, least), **behind}}


def highest_temperature(circuit: Circuit, noise_bound: float, allowed: float | None = None) -> float:
    """Up to which temperature a model samples: as its argmax was calibrated for, as its noise fits, as is allowed."""
    argmax = circuit.calibration.argmax
    stated = 0.0 if argmax is None else argmax.temperature
    fits = noise_bound / gumbel_bound(circuit.shape.vocabulary)
    return min(stated, fits, stated if allowed is None else allowed)


def make_bundle(plan: Plan, circuit: Circuit) -> bytes:
    """Tokenizer files and the token embedding table, in the checkpoint's own numbers, as one message.

    Of images it is the matrix of patches, a row for every entry of the stream, and how images are cut.
    """
    stage = circuit.stages[0]
    assert isinstance(stage, (Embed, Patches))
    name = stage.weight if isinstance(stage, Patches) else stage.token
    table = circuit.weights[name]
    table = table.reshape(len(table), -1)
    if table.dtype.name not in _DTYPES:
        raise ConfigError(f"{name}: {table.dtype.name} embeddings cannot be served; export the circuit in float16")
    little = table.astype(table.dtype.newbyteorder("<"), copy=False)
    blocks = {f"tokenizer/{name}": data for name, data in sorted(circuit.tokenizer.items())}
    blocks["embedding"] = little.tobytes()
    body: dict[str, Any] = {"dtype": _DTYPES[table.dtype.name], "shape": list(table.shape)}
    if not centred(circuit.stages):
        body["centred"] = False
    if isinstance(stage, Patches):
        body |= {"image": list(stage.image), "patch": list(stage.patch)}
    return Message(kind="bundle", plan=plan.digest, body=body, blocks=blocks).pack()


def open_runner(opening: Opening, store: Objects | None = None) -> Runner:
    """Open a model for a key set, as a worker is told to; keys come from ``store`` if there is one, and so does a model
    that is named in it."""
    files = opening.plan, opening.circuit
    if store is None:
        keys = FolderKeys(opening.client_folder, opening.key_set)
    else:
        part, cache = store.below(opening.client_folder.as_posix()), KeyCache(cache_folder("keys"), opening.cache_bytes)
        keys = FolderKeys(part, opening.key_set, cache)
        if not opening.plan.is_absolute():
            files = unshelve(store, opening.plan.parent, cache_folder("models"))
    plan, circuit = Plan.load(files[0]), Circuit.load(files[1])
    options = dict(opening.options)
    if opening.engine == "native":
        options.setdefault("device", opening.device)
    engine = load_engine(opening.engine)(key_request(plan), keys, **options)
    return Runner(plan, engine, plan.source(circuit))
