# SPDX-License-Identifier: Apache-2.0
"""Images with labels as the rows that a run learns from: pixels, then the label."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heatfhe.errors import ConfigError, DataError
from heatfhe.sites import Prepared
from heatfhe.training.data import Windows


@dataclass(frozen=True, slots=True)
class Images(Windows):
    """Images of one size, each a row in float32: its pixels (channels, height, width) flat, and its label last.

    ``length`` is how many rows of the stream one image makes: what a recipe calls its context.
    """

    length: int = 0

    @classmethod
    def of(cls, pixels: NDArray[Any], labels: NDArray[Any], prepared: Prepared) -> Images:
        """Images (N, channels, height, width) with a label each, for a model that classifies such.

        >>> Images.of(pixels, labels, prepare("my-vit"))                              # doctest: +SKIP
        """
        grid = prepared.grid
        if grid is None:
            raise ConfigError(f"{prepared.architecture.kind}: reads text, no images; give it text")
        flat = grid.checked(pixels).reshape(-1, math.prod(grid.image))
        if np.shape(labels) != (len(flat),):
            raise DataError(f"{len(flat)} images need as many labels, got an array of shape {np.shape(labels)}")
        rows = np.concatenate([flat, np.asarray(labels, dtype=np.float64)[:, None]], axis=1)
        return cls(rows.astype(np.float32), length=grid.rows)

    @property
    def context(self) -> int:
        """Rows of the stream that an image makes."""
        return self.length

    def mixed(self, rows: NDArray[np.int64]) -> Windows:
        """Images and odd windows do not mix."""
        if len(rows):
            raise DataError("odd windows are made of tokens; images are learned without them (odd_share 0)")
        return self


def check_images(prepared: Prepared, windows: Windows, odd_share: float) -> None:
    """Refuse images for a model of text, text for one of images, and labels that the model does not have."""
    grid, images = prepared.grid, isinstance(windows, Images)
    if images != (grid is not None):
        wanted = "images with labels (training.Images)" if grid is not None else "windows of tokens"
        raise ConfigError(f"{prepared.architecture.kind}: learns from {wanted}, got {type(windows).__name__}")
    if grid is None:
        return
    if odd_share:
        raise ConfigError(f"odd_share {odd_share:g}: odd windows are made of tokens; set it to 0 for images")
    if windows.rows.shape[1] != math.prod(grid.image) + 1:
        raise DataError(
            f"images of {windows.rows.shape[1] - 1} pixels do not fit the model's {grid.image}; resize them"
        )
    labels, known = windows.rows[:, -1], prepared.architecture.shape.vocabulary
    wrong = labels[(labels < 0) | (labels >= known) | (labels != np.round(labels))]
    if len(wrong):
        raise DataError(
            f"label {wrong[0]:g}: the model has {known} classes, 0 to {known - 1}; load it with num_labels="
            f"{int(labels.max()) + 1}, or mend the labels"
        )
