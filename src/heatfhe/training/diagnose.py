# SPDX-License-Identifier: Apache-2.0
"""When a run goes wrong: which site left its domain first. And the noise a deployed refresh would add."""

from __future__ import annotations

import torch
from torch import Tensor

from heatfhe.sites import Prepared
from heatfhe.sites.switch import Tap

# Values that go into, and come out of, the solvers: where a bootstrap's error would enter.
NOISY = ("/z", "/root", "/scores", "/sum", "/sum2", "/inverse", "/in")


@torch.no_grad()
def first_to_leave(prepared: Prepared, tokens: Tensor) -> str:
    """The first site in depth order whose input leaves its fitted domain, or is not finite, on these tokens, in words."""
    calibration = prepared.calibration
    found: list[str] = []

    def tap(name: str, value: Tensor) -> Tensor:
        if found or calibration is None:
            return value
        owner, _, part = name.rpartition("/")
        lo, hi = -float("inf"), float("inf")
        if part == "z" and owner in calibration.norms:
            lo, hi = calibration.norms[owner].fit.lo, calibration.norms[owner].fit.hi
        elif part == "scores" and owner in calibration.softmaxes:
            lo, hi = calibration.softmaxes[owner].fit.lo, calibration.softmaxes[owner].fit.hi
            value = value.tril()  # masked entries are never read
        elif part == "in" and owner in calibration.activations:
            hi = calibration.activations[owner].fit.bound
            lo = -hi
        finite = bool(torch.isfinite(value).all())
        worst_hi, worst_lo = float(value.max()), float(value.min())
        if not finite:
            found.append(f"{name}: holds non-finite values")
        elif worst_hi > hi or worst_lo < lo:
            worst = worst_hi if worst_hi > hi else worst_lo
            found.append(f"{name}: input {worst:.4g} lies outside its domain [{lo:.4g}, {hi:.4g}]")
        return value

    with prepared.tapped(tap):
        prepared(tokens)
    return found[0] if found else "no site left its domain; the loss itself is not finite"


def noise_tap(sigma: float, seed: int, step: int) -> Tap:
    """A tap that adds independent Gaussian noise at every solver's input and output; the same for equal (seed, step)."""
    generators: dict[torch.device, torch.Generator] = {}

    def tap(name: str, value: Tensor) -> Tensor:
        if not name.endswith(NOISY):
            return value
        if value.device not in generators:
            generators[value.device] = torch.Generator(value.device).manual_seed((seed << 32) + step)
        noise = torch.randn(value.shape, generator=generators[value.device], device=value.device, dtype=value.dtype)
        return value + sigma * noise

    return tap
