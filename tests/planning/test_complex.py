# SPDX-License-Identifier: Apache-2.0
"""A bootstrap keeps the real part alone, so no value that carries two halves may be refreshed."""

from __future__ import annotations

from heatfhe.planning.pack import Packing
from heatfhe.planning.programs import record
from tests.tiny import tiny_circuit


def test_values_that_carry_two_halves_are_never_refreshed() -> None:
    circuit = tiny_circuit(layers=2, width=16, vocabulary=32, context=16)
    recording = record(circuit, Packing(circuit.shape, 256, 16), "generate", reach=1024.0, halve=True, mlp="B")
    complex_nodes = [node for node in recording.graph(levels=8, fixed={}, required={}).nodes if node.complex]
    assert complex_nodes
    assert not any(node.refreshable for node in complex_nodes)
