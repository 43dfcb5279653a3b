# SPDX-License-Identifier: Apache-2.0
"""From a Circuit to a Plan: packing, recording, levels and bootstraps. numpy alone."""

from heatfhe.planning.capacity import SNAPSHOT_SECONDS, SNAPSHOT_SHARE, Capacity, Load, capacity
from heatfhe.planning.carried import Carried
from heatfhe.planning.cost import IN_MAPS, CostTable, cost_table, cost_tables
from heatfhe.planning.graph import Graph
from heatfhe.planning.instructions import KINDS, Given, Instruction
from heatfhe.planning.openfhe_sets import bootstrap_budget, bootstrap_correction
from heatfhe.planning.pack import LinearMap, Packing, Vector
from heatfhe.planning.params import preset, presets
from heatfhe.planning.placement import ALGORITHMS, Placement, Rules, check, place
from heatfhe.planning.plan import PRECISION, Plan, default_cost, plan
from heatfhe.planning.prices import IterationPrices
from heatfhe.planning.program import Port, Program, ProgramName, Step
from heatfhe.planning.programs import record
from heatfhe.planning.scales import blurred_ties, faint_sums
from heatfhe.planning.show import bars as tally_bars
from heatfhe.planning.show import levels as level_digits
from heatfhe.planning.source import PlaintextSource
from heatfhe.planning.tally import OperatorTally, key_bytes, tally, weight_bytes
from heatfhe.planning.tally import path as level_path
from heatfhe.planning.weights import Dense

__all__ = [
    "ALGORITHMS",
    "IN_MAPS",
    "KINDS",
    "PRECISION",
    "SNAPSHOT_SECONDS",
    "SNAPSHOT_SHARE",
    "Capacity",
    "Carried",
    "CostTable",
    "Dense",
    "Given",
    "Graph",
    "Instruction",
    "IterationPrices",
    "LinearMap",
    "Load",
    "OperatorTally",
    "Packing",
    "Placement",
    "PlaintextSource",
    "Plan",
    "Port",
    "Program",
    "ProgramName",
    "Rules",
    "Step",
    "Vector",
    "blurred_ties",
    "bootstrap_budget",
    "bootstrap_correction",
    "capacity",
    "check",
    "cost_table",
    "cost_tables",
    "default_cost",
    "faint_sums",
    "key_bytes",
    "level_digits",
    "level_path",
    "place",
    "plan",
    "preset",
    "presets",
    "record",
    "tally",
    "tally_bars",
    "weight_bytes",
]
