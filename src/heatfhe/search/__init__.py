# SPDX-License-Identifier: Apache-2.0
"""Counts searched on frozen weights (ATLAS): the rival of learning them. torch, and pymoo for its NSGA-II."""

from heatfhe.search.atlas import End, Found, SearchSettings, search
from heatfhe.search.batched import Batched
from heatfhe.search.seconds import PlanSeconds
from heatfhe.search.space import Space
from heatfhe.search.stairs import Rounded, round_to_stairs

__all__ = [
    "Batched", "End", "Found", "PlanSeconds", "Rounded", "SearchSettings", "Space", "round_to_stairs", "search",
]  # fmt: skip
