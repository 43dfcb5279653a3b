# SPDX-License-Identifier: Apache-2.0
"""A layer norm with its two sites: the Goldschmidt division of the rational seed, and Newton's iteration."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from heatfhe.approx import inverse_sqrt, rms_norm
from heatfhe.errors import SiteError
from heatfhe.halting import HaltingTable, expected_divide, expected_newton
from heatfhe.models import NormPlace
from heatfhe.records import NormCalibration
from heatfhe.sites.switch import Switch


class NormSite(nn.Module):
    """Stands where an ``nn.LayerNorm`` stood and holds the same two parameters under the same names."""

    def __init__(self, original: nn.LayerNorm, place: NormPlace, switch: Switch, table: list[HaltingTable]) -> None:
        super().__init__()
        self.weight, self.bias = original.weight, original.bias
        self.place, self.switch, self._table = place, switch, table
        self.original = (original,)  # in a tuple, so that torch does not count it as a child
        self.calibration: NormCalibration | None = None

    def forward(self, x: Tensor) -> Tensor:
        """The norm of the last axis, in the switch's mode; one number per row goes through the solvers."""
        switch, place = self.switch, self.place
        if switch.mode == "exact" and switch.tap is None and switch.bounds is None:
            return nn.functional.layer_norm(x, (place.width,), self.weight, self.bias, place.eps)
        kernels = switch.kernels(x)
        if kernels is not None:
            fused: Tensor = kernels.norm(self, x)
            return fused
        wide = x if x.dtype in (torch.float32, torch.float64) else x.float()
        centred = switch.see(place.reads, wide - wide.mean(dim=-1, keepdim=True))  # the stream a circuit carries
        out = rms_norm(centred, sum_of_squares=self._sum_of_squares, inverse_root=self._inverse_root)
        out = switch.see(place.writes, out)
        return (out * self.weight.to(out.dtype) + self.bias.to(out.dtype)).to(x.dtype)

    def _sum_of_squares(self, centred: Tensor) -> Tensor:
        switch, place = self.switch, self.place
        squares = (centred * centred).sum(dim=-1, keepdim=True)
        if switch.bounds is not None:
            variance, bound = squares * (1.0 / place.width), switch.variance_bound(place.name)
            switch.penalise("variance", variance, bound, squares.numel())
        return switch.see(f"{place.name}/z", squares + place.width * place.eps)

    def _inverse_root(self, z: Tensor) -> Tensor:
        switch, name, gain = self.switch, self.place.name, math.sqrt(self.place.width)
        if switch.mode == "exact":
            return switch.see(f"{name}/root", gain * torch.rsqrt(z))
        fit = self.fitted().fit
        z = switch.clamp(z, fit.lo, fit.hi)
        by_division = switch.distribution(self.table, f"{name}/goldschmidt", z)
        by_newton = switch.distribution(self.table, f"{name}/newton", z)
        if by_division is None or by_newton is None:
            counts = switch.count(f"{name}/goldschmidt"), switch.count(f"{name}/newton")
            return switch.see(f"{name}/root", inverse_sqrt(z, fit, *counts, gain=gain))
        division, newton = by_division, by_newton
        y = inverse_sqrt(
            z,
            fit,
            0,
            0,
            gain=gain,
            solve=lambda n, q: expected_divide(n, q, fit.denominator, division),
            polish=lambda z, y: expected_newton(z, y, newton, gain=gain),
        )
        return switch.see(f"{name}/root", y)

    @property
    def table(self) -> HaltingTable:
        """The distributions in use."""
        return self._table[0]

    def fitted(self) -> NormCalibration:
        """The calibration in use."""
        if self.calibration is None:
            raise SiteError(f"{self.place.name}/goldschmidt", "is not calibrated; run calibrate first")
        return self.calibration
