# SPDX-License-Identifier: Apache-2.0
"""Runs as one HTML page and as figures. Needs no torch; matplotlib only for PNG files."""

from heatfhe.report.card import Card, circuit_card, server_card
from heatfhe.report.figures import draw_figures
from heatfhe.report.gather import Material, gather
from heatfhe.report.page import render

__all__ = ["Card", "Material", "circuit_card", "draw_figures", "gather", "render", "server_card"]
