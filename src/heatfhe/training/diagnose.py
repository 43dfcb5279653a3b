# SPDX-License-Identifier: Apache-2.0
"""What a run is told of deployment: the noise a refresh would add, what iterations cost; and which site goes wrong."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from heatfhe.records import Calibration
from heatfhe.sites import Prepared, Tap

MOST_WEIGHT = 4.0  # of a dear site over the mean: more would pull it down faster than weights can follow
# The site that reads a value: what a message names.
READERS = {"z": "goldschmidt", "root": "newton", "scores": "init", "sum": "init", "sum2": "refine", "inverse": "refine"}


@torch.no_grad()
def first_to_leave(prepared: Prepared, tokens: Tensor) -> str:
    """The first site in depth order whose input leaves its fitted domain, or is not finite, on these tokens."""
    found: list[str] = []
    domains = {} if prepared.calibration is None else prepared.calibration.domains()

    def tap(name: str, value: Tensor) -> Tensor:
        if not found:
            owner, _, part = name.rpartition("/")
            site = f"{owner}/{READERS[part]}" if part in READERS else owner if part == "in" else name
            lo, hi = domains.get(name, (-math.inf, math.inf))
            inputs = _as_compared(part, value, len(prepared.config.prefix), prepared.grid is not None)
            least, most = float(inputs.min()), float(inputs.max())
            if not bool(torch.isfinite(inputs).all()):
                found.append(f"{site}: its input holds values that are not finite")
            elif most > hi or least < lo:
                worst = most if most > hi else least
                found.append(f"{site}: input {worst:.4g} lies outside its domain [{lo:.4g}, {hi:.4g}]")
        return value

    with prepared.tapped(tap):
        prepared(tokens)
    return found[0] if found else "no site left its domain; the loss itself went astray"


def _as_compared(part: str, value: Tensor, public: int, whole: bool) -> Tensor:
    """Scores without the masked ones, which are never read; sums over their row's length, a prefix included."""
    if part == "scores":
        return value if whole else value.tril(public)
    if part in ("sum", "sum2"):
        return value / _lengths(value, public, whole)
    return value


def _lengths(rows: Tensor, public: int, whole: bool) -> Tensor:
    """Of rows (..., T, 1) behind a prefix: up to each, or of all where every row sees the whole."""
    count = rows.shape[-2]
    start = count if whole else public + 1
    return torch.arange(start, start + (1 if whole else count), device=rows.device)[:, None]


class Sizes(Protocol):
    """How a plan carries values under a calibration, by tap name: (f, power), times f * n^power in a row of length n.

    Training knows no plans, so that its caller passes this in (``planning.Carried``). ``name`` is the parameter set's.
    """

    @property
    def name(self) -> str: ...

    def __call__(self, calibration: Calibration) -> Mapping[str, tuple[float, float]]: ...


class Prices(Protocol):
    """Seconds of a deployed token that one iteration costs at each site, under a calibration and its counts; and counts
    near these that cost less.

    Training knows no plans, so that its caller passes this in (``planning.IterationPrices``). ``name`` says what they
    depend on beside the calibration.
    """

    @property
    def name(self) -> str: ...

    def __call__(self, calibration: Calibration) -> Mapping[str, float]: ...

    def on_stairs(
        self, calibration: Calibration, reach: int, bounds: Mapping[str, tuple[int, int]]
    ) -> Mapping[str, int]:
        """Counts of a cheaper token: each softmax's changed by at most ``reach``, within bounds, no fewer in all."""
        ...


def priced_weights(prices: Mapping[str, float], share: float) -> dict[str, float]:
    """Weights of mean about one: ``1 - share`` for every site, the rest by price, up to MOST_WEIGHT times the mean."""
    mean = sum(prices.values()) / max(1, len(prices))
    if mean <= 0:
        return dict.fromkeys(prices, 1.0)
    return {name: 1 - share + share * min(MOST_WEIGHT, price / mean) for name, price in prices.items()}


def noise_tap(
    carried: Mapping[str, tuple[float, float]],
    sigma: float,
    seed: int,
    batch: int,
    *,
    public: int = 0,
    whole: bool = False,
) -> Tap:
    """A tap that adds a refresh's noise to the values carried: sigma as they are carried, the same for equal (seed,
    batch). Rows begin behind a ``public`` prefix, or each of them sees the ``whole``."""
    mixed = int(np.random.SeedSequence([seed, batch]).generate_state(1)[0])  # torch reads 32 bits of a seed on a CPU
    generators: dict[torch.device, torch.Generator] = {}

    def tap(name: str, value: Tensor) -> Tensor:
        if name not in carried:
            return value
        if value.device not in generators:
            generators[value.device] = torch.Generator(value.device).manual_seed(mixed)
        noise = torch.randn(value.shape, generator=generators[value.device], device=value.device, dtype=value.dtype)
        factor, power = carried[name]
        if power:
            noise = noise / _lengths(value, public, whole).float() ** power
        return value + (sigma / factor) * noise.to(value.dtype)

    return tap
