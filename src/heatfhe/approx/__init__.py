# SPDX-License-Identifier: Apache-2.0
"""Solvers and polynomial fits: each function is pure, of + - * alone, and states its domain, bound and depth."""

from heatfhe.approx.activation import ActivationFit, activation, fit_activation
from heatfhe.approx.activation import exact as exact_activation
from heatfhe.approx.argmax import ArgmaxRound, ArgmaxSchedule, cutmax
from heatfhe.approx.argmax_schedule import POWERS as ARGMAX_POWERS
from heatfhe.approx.argmax_schedule import fit_schedule, shorten
from heatfhe.approx.argmax_settle import MOST_SETTLE, Settle, fit_settle
from heatfhe.approx.arithmetic import Arithmetic, Depth, Plain, T
from heatfhe.approx.exponential import ExponentialFit, exponential, fit_exponential
from heatfhe.approx.gumbel import gumbel_bound, gumbel_noise
from heatfhe.approx.inverse_sqrt import (
    ChordSeed,
    InverseSqrtFit,
    RationalSeed,
    chord_inverse_sqrt,
    fit_inverse_sqrt,
    fit_rational_seed,
    inverse_sqrt,
    newton,
)
from heatfhe.approx.norm import rms_norm
from heatfhe.approx.polynomial import evaluate
from heatfhe.approx.reciprocal import ReciprocalFit, divide, goldschmidt, reciprocal
from heatfhe.approx.softmax import (
    SoftmaxFit,
    smallest_deltas,
    softmax,
)
from heatfhe.approx.softmax import solvers as softmax_solvers

__all__ = [
    "ARGMAX_POWERS",
    "MOST_SETTLE",
    "ActivationFit",
    "ArgmaxRound",
    "ArgmaxSchedule",
    "Arithmetic",
    "ChordSeed",
    "Depth",
    "ExponentialFit",
    "InverseSqrtFit",
    "Plain",
    "RationalSeed",
    "ReciprocalFit",
    "Settle",
    "SoftmaxFit",
    "T",
    "activation",
    "chord_inverse_sqrt",
    "cutmax",
    "divide",
    "evaluate",
    "exact_activation",
    "exponential",
    "fit_activation",
    "fit_exponential",
    "fit_inverse_sqrt",
    "fit_rational_seed",
    "fit_schedule",
    "fit_settle",
    "goldschmidt",
    "gumbel_bound",
    "gumbel_noise",
    "inverse_sqrt",
    "newton",
    "reciprocal",
    "rms_norm",
    "shorten",
    "smallest_deltas",
    "softmax",
    "softmax_solvers",
]
