# SPDX-License-Identifier: Apache-2.0
"""The Circuit: what is computed, without schedule. numpy alone."""

from heatfhe.circuit.circuit import Circuit, Generation, leader_of
from heatfhe.circuit.fold import Folded, FoldedLinear
from heatfhe.circuit.forward import Cache, Tap, embed, forward, one_hot
from heatfhe.circuit.show import facts_table, show

__all__ = [
    "Cache",
    "Circuit",
    "Folded",
    "FoldedLinear",
    "Generation",
    "Tap",
    "embed",
    "facts_table",
    "forward",
    "leader_of",
    "one_hot",
    "show",
]
