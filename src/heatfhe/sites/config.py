# SPDX-License-Identifier: Apache-2.0
"""How a model is prepared: the choices that stay with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from heatfhe.errors import ConfigError
from heatfhe.halting import GAMMA
from heatfhe.records import FAMILIES


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareConfig:
    """Options of ``prepare``.

    ``max_counts``  largest count by family, where the family's own is too small (it is never lowered). Adopting a
                    calibration raises it further, to one above the largest calibrated count of the family.
    ``gamma``       slope of the ramp the halting logits start on.
    """

    max_counts: Mapping[str, int] = field(default_factory=dict)
    gamma: float = GAMMA

    def __post_init__(self) -> None:
        for family, top in self.max_counts.items():
            if family not in FAMILIES:
                raise ConfigError(f"unknown family {family!r}; have {', '.join(FAMILIES)}")
            if top < FAMILIES[family].floor:
                raise ConfigError(f"{family}: max_count {top} lies below its floor {FAMILIES[family].floor}")
        if not self.gamma > 0.0:
            raise ConfigError(f"gamma must be above 0, got {self.gamma:g}")
