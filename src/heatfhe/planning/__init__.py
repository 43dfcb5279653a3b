# SPDX-License-Identifier: Apache-2.0
"""From a Circuit to a Plan: packing, recording, levels and bootstraps. numpy alone."""

from heatfhe.planning.cost import CostTable, cost_table, cost_tables
from heatfhe.planning.graph import Graph, Node
from heatfhe.planning.pack import Packing, Product
from heatfhe.planning.params import presets
from heatfhe.planning.placement import ALGORITHMS, Placement, Rules, check, place
from heatfhe.planning.plan import Plan, plan
from heatfhe.planning.program import Port, Program, Step
from heatfhe.planning.programs import PROGRAMS, record
from heatfhe.planning.source import PlaintextSource

__all__ = [
    "ALGORITHMS",
    "PROGRAMS",
    "CostTable",
    "Graph",
    "Node",
    "Packing",
    "Placement",
    "PlaintextSource",
    "Plan",
    "Port",
    "Product",
    "Program",
    "Rules",
    "Step",
    "check",
    "cost_table",
    "cost_tables",
    "place",
    "plan",
    "presets",
    "record",
]
