# SPDX-License-Identifier: Apache-2.0
"""Ranges: watch a prepared model on real sequences and calibrate its sites. torch."""

from heatfhe.ranges.argmax import ORDERS, fit_argmax
from heatfhe.ranges.calibrate import calibrate, fit_calibration, refit
from heatfhe.ranges.fits import RULES, FitOptions
from heatfhe.ranges.observe import TEMPERATURES, Observation, Observer, Range, observe

__all__ = [
    "ORDERS",
    "RULES",
    "TEMPERATURES",
    "FitOptions",
    "Observation",
    "Observer",
    "Range",
    "calibrate",
    "fit_argmax",
    "fit_calibration",
    "observe",
    "refit",
]
