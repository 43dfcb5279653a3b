# SPDX-License-Identifier: Apache-2.0
"""An activation: analytic while training, its fitted polynomial when deployed. It has a guard and no halting site."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from heatfhe.approx import activation
from heatfhe.errors import SiteError
from heatfhe.records import ActivationCalibration
from heatfhe.sites.switch import Switch
from heatfhe.stages import Activation

_ANALYTIC: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu_new": lambda x: nn.functional.gelu(x, approximate="tanh"),
    "gelu": nn.functional.gelu,
    "silu": nn.functional.silu,
    "quick_gelu": lambda x: x * (1.702 * x).sigmoid(),
    "relu": nn.functional.relu,
}
_FUSED = ("gelu_new", "gelu", "silu")  # those of heatfhe.sites.fused


class ActivationSite(nn.Module):
    """Stands where the activation module stood; owns no parameters."""

    def __init__(self, original: nn.Module, stage: Activation, switch: Switch) -> None:
        super().__init__()
        self.stage, self.switch = stage, switch
        self.original = (original,)  # in a tuple, so that torch does not count it as a child
        self.calibration: ActivationCalibration | None = None

    def forward(self, x: Tensor) -> Tensor:
        """The activation of every entry, in the switch's mode."""
        kernels = self.switch.kernels(x)
        if kernels is not None and self.stage.function in _FUSED:
            fused: Tensor = kernels.activate(self, x)
            return fused
        return self.switch.behind(self.original[0], self._rows, x)

    def _rows(self, x: Tensor) -> Tensor:
        switch, stage = self.switch, self.stage
        if switch.bounds is not None:
            switch.penalise("activation", x, switch.bounds.activation, x.numel() // x.shape[-1])
        x = switch.see(f"{stage.name}/in", switch.see(stage.reads, x))
        if switch.mode == "exact":
            exact: Tensor = self.original[0](x)
            return switch.see(stage.writes, exact)
        fit = self.fitted().fit
        if switch.mode == "deployed":
            return switch.see(stage.writes, activation(x * (1.0 / fit.bound), fit))
        return switch.see(stage.writes, _ANALYTIC[stage.function](switch.clamp(x, -fit.bound, fit.bound)))

    def fitted(self) -> ActivationCalibration:
        """The calibration in use."""
        if self.calibration is None:
            raise SiteError(self.stage.name, "is not calibrated; run calibrate first")
        return self.calibration
