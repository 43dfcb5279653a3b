# SPDX-License-Identifier: Apache-2.0
"""Ranges: watch a prepared model on real sequences and calibrate its sites. torch."""

from heatfhe.ranges.argmax import MAX_TEMPERATURE, fit_argmax, sampled_rows
from heatfhe.ranges.calibrate import calibrate, fit_calibration, refit
from heatfhe.ranges.centre import Centred, centre
from heatfhe.ranges.fits import FitOptions
from heatfhe.ranges.observe import Observation, Range, observe

__all__ = [
    "MAX_TEMPERATURE",
    "Centred",
    "FitOptions",
    "Observation",
    "Range",
    "calibrate",
    "centre",
    "fit_argmax",
    "fit_calibration",
    "observe",
    "refit",
    "sampled_rows",
]
