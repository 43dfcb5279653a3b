# SPDX-License-Identifier: Apache-2.0
"""The expected solvers as GPU kernels, whole and as parts of larger kernels. Needs triton."""

from heatfhe.halting.fused.solvers import (
    CAP,
    goldschmidt,
    goldschmidt_shares,
    goldschmidt_tangent,
    goldschmidt_value,
    newton,
    newton_shares,
    newton_tangent,
    newton_value,
    on_device,
)

__all__ = [
    "CAP",
    "goldschmidt",
    "goldschmidt_shares",
    "goldschmidt_tangent",
    "goldschmidt_value",
    "newton",
    "newton_shares",
    "newton_tangent",
    "newton_value",
    "on_device",
]
