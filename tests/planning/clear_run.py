# SPDX-License-Identifier: Apache-2.0
"""Parameters of the clear engine for tests, and a whole generation run through a plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heatfhe.circuit import Circuit
from heatfhe.ckks.params import Params
from heatfhe.engine import ClearEngine, Conversation, Runner, key_request
from heatfhe.planning import Plan
from heatfhe.planning.programs.attention import Loudness
from heatfhe.planning.programs.builder import ROWS, Builder
from heatfhe.records import SoftmaxCalibration


def collect(values: NDArray[Any], index: NDArray[np.intp], size: int) -> NDArray[np.float64]:
    """Inverse of ``Packing.place``: the first slot that holds each index."""
    where = np.full(size, -1)
    real = np.flatnonzero(index >= 0)[::-1]
    where[index[real]] = real
    out = np.zeros((*values.shape[:-1], size))
    out[..., where >= 0] = np.real(values)[..., where[where >= 0]]
    return out


def clear_params(slots: int, *, levels: int = 8, reach: float = 16.0, pair_levels: int = 0) -> Params:
    """A set for the clear engine: no claim of security, any slot count."""
    return Params(
        name=f"insecure-clear-{slots}-{levels}",
        engine="clear",
        ring_dimension=2 * slots,
        levels=levels,
        scale_bits=40.0,
        log_qp=1000.0,
        noise=1e-6,
        promised_bits=15.0,
        reach=reach,
        pair_levels=pair_levels,
    )


def quiet_sums(b: Builder, c: SoftmaxCalibration) -> Loudness:
    """For a tight plan's loudness: sums of a softmax at most aim, and every copy of a reciprocal as it is."""
    aim = b.scales.aim
    assert c.fit.refine is not None
    return Loudness((aim, aim), (ROWS * (c.fit.refine.hi / aim)).power(-0.5), 1)


@dataclass(frozen=True)
class Run:
    """What a generation gave: near one-hot rows, and the trace of every instruction."""

    one_hots: list[NDArray[np.float64]]
    trace: list[tuple[Any, ...]]


def teacher_forced(plan: Plan, circuit: Circuit, tokens: NDArray[np.int64], **options: Any) -> NDArray[np.float64]:
    """Logits of windows (W, P), all windows as one batch."""
    engine = ClearEngine(plan.params, request=key_request(plan), **options)
    decode = Conversation(Runner(plan, engine, plan.source(circuit)))
    rows = plan.packing.pack_residual(circuit.folded.token[tokens])
    found = []
    for position in range(tokens.shape[1]):
        logits = decode.logits([engine.value(rows[:, position])])
        found.append(plan.packing.unpack_vocabulary([v.slots for v in logits]))
    return np.stack(found, axis=1)


def generate(plan: Plan, circuit: Circuit, prompt: list[int], count: int, **options: Any) -> Run:
    """Prompt, then free running, on the clear engine with exactly the plan's keys."""
    engine = ClearEngine(plan.params, request=key_request(plan), **options)
    trace: list[tuple[Any, ...]] = []
    decode = Conversation(Runner(plan, engine, plan.source(circuit), trace=trace.append))
    rows = [[engine.value(plan.packing.pack_residual(circuit.folded.token[t]))] for t in prompt]
    for x in rows[:-1]:
        decode.prompt(x)
    made = [decode.generate(rows[-1])]
    made += [decode.generate() for _ in range(count - 1)]
    return Run([plan.packing.unpack_vocabulary([v.slots for v in row]) for row in made], trace)


def talks(made: Plan, circuit: Circuit, prompt: NDArray[np.int64], **options: Any) -> tuple[Conversation, Conversation]:
    """The same prompt token by token, and at once."""
    engine = ClearEngine(made.params, request=key_request(made), **options)
    runner = Runner(made, engine, made.source(circuit))
    single, packed = Conversation(runner), Conversation(runner)
    for token in prompt:
        single.prompt([engine.value(made.packing.pack_residual(circuit.folded.token[token]))])
    packed.prefill([engine.value(v) for v in block_rows(made, circuit, prompt)], len(prompt))
    return single, packed


def block_rows(made: Plan, circuit: Circuit, prompt: NDArray[np.int64]) -> list[NDArray[np.float64]]:
    """The prompt's embeddings in whole blocks, filled up with its last token, and with its first in the places of a
    public prefix."""
    place = np.arange(len(made.program("prefill").inputs["x"].values) * made.packing.t) - made.prefix
    filled = prompt[np.clip(place, 0, len(prompt) - 1)]
    return made.packing.tokens.pack_tokens(circuit.folded.token[filled])


def distance(a: Conversation, b: Conversation) -> float:
    """Largest difference of two caches, in every slot of every ciphertext."""
    assert a.cache.keys() == b.cache.keys()
    assert a.position == b.position
    return max(float(np.abs(x.slots - y.slots).max()) for name in a.cache for x, y in zip(a.cache[name], b.cache[name]))
