# SPDX-License-Identifier: Apache-2.0
"""The public size of a model."""

from __future__ import annotations

from dataclasses import dataclass

from heatfhe.errors import ConfigError

LARGEST = 1 << 24  # of any size of a model


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The public size of a model. ``context`` is the longest sequence, prompt and answer together."""

    layers: int
    width: int
    heads: int
    hidden: int
    vocabulary: int
    context: int

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if not 1 <= getattr(self, name) <= LARGEST:
                raise ConfigError(f"shape: {name} must lie in [1, {LARGEST}], got {getattr(self, name)}")
        if self.width % self.heads:
            raise ConfigError(f"shape: width {self.width} is not a multiple of {self.heads} heads")

    @property
    def head_width(self) -> int:
        """Width of one head."""
        return self.width // self.heads
