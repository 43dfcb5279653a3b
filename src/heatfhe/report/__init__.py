# SPDX-License-Identifier: Apache-2.0
"""Runs as one HTML page and as figures. Needs no torch; matplotlib only for PNG files."""

from heatfhe.report.charts import Figure
from heatfhe.report.figures import draw_figures
from heatfhe.report.gather import CircuitFacts, Material, PlanFacts, SiteRow, TrainingFacts, gather
from heatfhe.report.page import render

__all__ = [
    "CircuitFacts",
    "Figure",
    "Material",
    "PlanFacts",
    "SiteRow",
    "TrainingFacts",
    "draw_figures",
    "gather",
    "render",
]
