# SPDX-License-Identifier: Apache-2.0
"""A norm with its two sites: the Goldschmidt division of the rational seed, and Newton's iteration."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from heatfhe.approx import inverse_sqrt, rms_norm
from heatfhe.errors import SiteError
from heatfhe.halting import HaltingTable, expected_divide, expected_newton
from heatfhe.records import NormCalibration
from heatfhe.sites.guards import astray
from heatfhe.sites.switch import Switch
from heatfhe.stages import Norm


class NormSite(nn.Module):
    """Stands where a layer norm or RMS norm stood and holds the same parameters under the same names."""

    def __init__(self, original: nn.Module, stage: Norm, switch: Switch, table: list[HaltingTable]) -> None:
        super().__init__()
        self.weight: nn.Parameter = original.weight
        self.register_parameter("bias", None if stage.bias is None else original.bias)
        self.stage, self.switch, self._table = stage, switch, table
        self.original = (original,)  # in a tuple, so that torch does not count it as a child
        self.calibration: NormCalibration | None = None

    def forward(self, x: Tensor) -> Tensor:
        """The norm of the last axis, in the switch's mode; one number per row goes through the solvers."""
        switch, stage = self.switch, self.stage
        if stage.centred and switch.mode == "exact" and switch.tap is None and switch.bounds is None:
            return self._exact(x)
        if switch.bounds is not None and math.isfinite(switch.bounds.spread) and stage.name in switch.medians:
            variances = self._variances(switch.private(x))
            switch.add_term("spread", astray(variances, switch.medians[stage.name], switch.bounds.spread))
        kernels = switch.kernels(x)
        if kernels is not None:
            fused: Tensor = kernels.norm(self, x)
            return fused
        return switch.behind(self._exact, self._rows, x)

    def _exact(self, x: Tensor) -> Tensor:
        if self.stage.centred:
            return nn.functional.layer_norm(x, (self.width,), self.weight, self.bias, self.stage.eps)
        y = nn.functional.rms_norm(x, (self.width,), self.weight, self.stage.eps)
        return y if self.bias is None else y + self.bias

    def _rows(self, x: Tensor) -> Tensor:
        switch, stage = self.switch, self.stage
        wide = x if x.dtype in (torch.float32, torch.float64) else x.float()
        carried = wide - wide.mean(dim=-1, keepdim=True) if stage.centred else wide
        carried = switch.see(stage.reads, carried)  # the stream a circuit carries
        out = rms_norm(carried, sum_of_squares=self._sum_of_squares, inverse_root=self._inverse_root)
        out = switch.see(stage.writes, out) * self.weight.to(out.dtype)
        return (out if self.bias is None else out + self.bias.to(out.dtype)).to(x.dtype)

    def _variances(self, x: Tensor) -> Tensor:
        wide = x if x.dtype in (torch.float32, torch.float64) else x.float()
        rows = wide - wide.mean(dim=-1, keepdim=True) if self.stage.centred else wide
        return (rows * rows).mean(dim=-1) + self.stage.eps

    def _sum_of_squares(self, carried: Tensor) -> Tensor:
        switch, stage = self.switch, self.stage
        squares = (carried * carried).sum(dim=-1, keepdim=True)
        if switch.bounds is not None:
            variance, bound = squares * (1.0 / self.width), switch.variance_bound(stage.name)
            switch.penalise("variance", variance, bound, squares.numel())
        return switch.see(f"{stage.name}/z", squares + self.width * stage.eps)

    def _inverse_root(self, z: Tensor) -> Tensor:
        switch, name, gain = self.switch, self.stage.name, math.sqrt(self.width)
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
    def width(self) -> int:
        """Entries of a row."""
        return self.weight.shape[-1]

    @property
    def table(self) -> HaltingTable:
        """The distributions in use."""
        return self._table[0]

    def fitted(self) -> NormCalibration:
        """The calibration in use."""
        if self.calibration is None:
            raise SiteError(f"{self.stage.name}/goldschmidt", "is not calibrated; run calibrate first")
        return self.calibration
