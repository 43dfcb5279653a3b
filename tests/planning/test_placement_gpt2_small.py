# SPDX-License-Identifier: Apache-2.0
"""The recorded step of a GPT-2-small-shaped circuit at the HEAT paper's counts, argmax and feedback included."""

from __future__ import annotations

import time

import pytest
from runs.gpt2_small_fixture import gpt2_small

from heatfhe.planning import Graph, Packing, cost_table, place, record
from heatfhe.planning.params import preset
from heatfhe.planning.placement import compare


def step(counts: str, params: str) -> Graph:
    """The graph of one generated token, its next input back at the top level."""
    circuit, levels = gpt2_small(counts), preset(params).levels
    packing = Packing(circuit.shape, preset(params).slots, 128)
    recording = record(circuit, packing, "generate", window=preset(params).window)
    return recording.graph(levels=levels, fixed={}, required={"next": levels})


@pytest.mark.parametrize(
    ("counts", "params", "table", "most"),
    [
        ("heat", "paper-16", "unit", 128),  # the paper spends 326
        ("calibrated", "paper-16", "unit", 210),  # the paper spends 513
        ("heat", "native-16-r40", "unit", 84),
        ("heat", "native-16-r40", "equivalents", 46),
        ("heat", "native-16-r35", "unit", 70),
    ],
)
def test_bootstraps_of_a_token(counts: str, params: str, table: str, most: float) -> None:
    begun = time.process_time()
    placement = place(step(counts, params), preset(params), cost_table(table))
    assert placement.seconds <= most
    assert time.process_time() - begun < 60


def test_every_algorithm_on_the_recorded_token() -> None:
    rows = compare(step("heat", "paper-16"), preset("paper-16"), cost_table("unit"))
    found = {(r.algorithm, r.pairing): r.placement.bootstraps for r in rows if r.placement is not None}
    assert len(found) == len(rows)
    assert found[("exact", True)] == min(found.values())
    assert found[("exact", False)] <= min(found[("greedy", False)], found[("shortest-path", False)])
