# SPDX-License-Identifier: Apache-2.0
"""Counts searched on frozen weights (ATLAS): the rival of learning them. torch, and pymoo for its NSGA-II."""

from heatfhe.search.atlas import End, Found, SearchSettings, search
from heatfhe.search.batched import Batched
from heatfhe.search.seconds import PlanSeconds
from heatfhe.search.space import Space

__all__ = ["Batched", "End", "Found", "PlanSeconds", "SearchSettings", "Space", "search"]
