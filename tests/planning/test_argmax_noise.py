# SPDX-License-Identifier: Apache-2.0
"""The argmax under refresh noise: which of its values may be refreshed, and what that does to its rows."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from heatfhe.ckks.params import Params
from heatfhe.engine import BootstrapNoise, ClearEngine, OperationNoise
from heatfhe.engine.runner import Runner
from heatfhe.planning import Packing, Plan, cost_table, place, record
from heatfhe.planning.assemble import assemble
from heatfhe.planning.params import preset
from heatfhe.planning.programs.builder import Builder
from heatfhe.planning.programs.vocabulary import argmax
from heatfhe.planning.recording import finish
from heatfhe.planning.source import PlaintextSource
from tests.tiny import tiny_circuit

sys.path.insert(0, str(Path(__file__).parents[2] / "runs"))
from gpt2_small_fixture import gpt2_small, synthetic_logits


def test_the_row_is_never_refreshed_after_its_last_power() -> None:
    """Noise there would add up over the vocabulary; the inverse roots' noise is common to a row and may stay."""
    circuit = tiny_circuit()
    recording = record(circuit, Packing(circuit.shape, 64, 16), "generate")
    ours = [recording.facts[g.root] for g in recording.groups if recording.ops[g.ops[-1]].operator == "argmax"]
    assert [f.period for f in ours if f.last] == [64, 64]  # what leaves the last power, and its share of the sum
    assert any(f.period == 1 and f.refreshable and not f.last for f in ours)


def one_hots(
    rows: NDArray[np.float64], params: Params, sigma: float, *, tight: bool = False, rounding: bool = False
) -> NDArray[np.float64]:
    """Rows of logits through the argmax alone, planned for these parameters, with noise at its bootstraps.

    With ``rounding`` every slot of a bootstrap errs by itself, and operations round.
    """
    circuit = gpt2_small("heat")
    b = Builder(circuit, Packing(circuit.shape, params.slots, 128), params.reach, True, True, "A", tight)
    scale = b.scales.logits
    logits = b.r.input("logits", period=b.p.V, bound=2 * b.bound("logits") * scale, parts=b.p.vocabulary_parts)
    b.r.output("token", argmax(b, logits, centred=True))
    recording = finish(b.r)
    graph = recording.graph(levels=params.levels, fixed={}, required={})
    placed = place(graph, params, cost_table("unit"))
    program = assemble(recording, placed, params, name="generate", inputs={}, outputs={})
    made = Plan(
        circuit=circuit.digest, name="argmax", params=params, shape=circuit.shape, context=128,
        programs={"generate": program}, products={}, placement="exact", cost="unit",
    )  # fmt: skip
    engine = ClearEngine(
        params, noise=BootstrapNoise(sigma=sigma), rng=np.random.default_rng(0), strict=False,
        rounding=OperationNoise(params=params) if rounding else None,
    )  # fmt: skip
    runner = Runner(made, engine, PlaintextSource(circuit, b.p, {}, params.reach, tight=tight))
    centred = (rows - rows.mean(-1, keepdims=True)) * scale
    out = runner.run("generate", {"logits": [engine.value(v) for v in b.p.pack_vocabulary(centred)]}, 0)
    return b.p.unpack_vocabulary([v.slots for v in out["token"]])


def test_near_ties_are_decided_by_the_logits_not_by_a_refresh() -> None:
    """A variance of a wide domain errs in each slot by itself; a tight plan adds its copies up, and the error is one.

    The powers raise a difference between two slots 189-fold; one of logits counts 84-fold.
    """
    params, rows = preset("native-16-r40"), synthetic_logits(6, seed=5)
    first, second = np.argsort(-rows, axis=-1)[:, :2].T
    each = np.arange(len(rows))
    rows[each, second] = rows[each, first] - 0.03

    def lead(hot: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(np.log(hot[each, first] / hot[each, second]))

    exact = lead(one_hots(rows, params, 0.0))
    apart = {tight: lead(one_hots(rows, params, 1e-7, tight=tight, rounding=True)) - exact for tight in (True, False)}
    assert np.abs(lead(one_hots(rows, params, 0.0, tight=True)) - exact).max() < 1e-9  # the same function
    assert np.abs(apart[True]).max() < 0.02  # 0.004 of 2.8
    assert np.abs(apart[False]).max() > 0.06  # 0.095; on the flatter rows of a trained model more than one


@pytest.mark.slow
@pytest.mark.parametrize("name", ["native-16-r40", "paper-16"])
def test_fifty_thousand_words_keep_their_leader_under_noise(name: str) -> None:
    params, rows = preset(name), synthetic_logits(24, seed=5)
    clear = one_hots(rows, params, 0.0)
    noisy = one_hots(rows, params, 1e-5)
    assert (clear.argmax(-1) == rows.argmax(-1)).all()
    assert (noisy.argmax(-1) == rows.argmax(-1)).all()
    rest = noisy - clear
    rest[np.arange(len(rows)), rows.argmax(-1)] = 0.0
    assert np.linalg.norm(rest, axis=-1).max() < 0.1  # spread over the row: what the next embedding would gather
