# SPDX-License-Identifier: Apache-2.0
"""Images as arrays of pixels: scikit-learn's 8 x 8 digits, and files of a folder. Both need the extra ``images``.

Pixels are scaled from [0, 1] to [-1, 1], as the image processor of ViT does unless it is told otherwise.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heatfhe.errors import DataError, MissingExtraError

Pixels = NDArray[np.float32]
SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")
HELD_OUT = 360  # of 1797 digits
_MODES = {1: "L", 3: "RGB"}


def digits(*, held_out: bool = False, seed: int = 0) -> tuple[Pixels, NDArray[np.int64]]:
    """Pixels (N, 1, 8, 8) and labels of scikit-learn's digits: 1437 to learn from, or the 360 ``held_out``."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as err:
        raise MissingExtraError("images", needed_by="the digits of scikit-learn") from err
    found: Any = load_digits()
    order = np.random.default_rng(seed).permutation(len(found.target))
    picked = order[-HELD_OUT:] if held_out else order[:-HELD_OUT]
    pixels = scaled(found.images[picked][:, None] / 16.0)
    return pixels, np.asarray(found.target[picked], dtype=np.int64)


def image_files(folder: str | Path) -> list[Path]:
    """The images of a folder, by name; or the one file that is named."""
    path = Path(folder)
    found = [path] if path.is_file() else sorted(p for p in path.glob("*") if p.suffix.lower() in SUFFIXES)
    if not found:
        raise DataError(f"{path}: holds no image; give a file, or a folder with {', '.join(SUFFIXES)}")
    return found


def read_image(path: Path, size: tuple[int, int, int], *, resize: bool = False) -> Pixels:
    """Pixels (channels, height, width) of a file. One of another size is refused, or scaled to it (``resize``)."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as err:
        raise MissingExtraError("images", needed_by="reading images") from err
    channels, height, width = size
    if channels not in _MODES:
        raise DataError(f"{path}: files are read with 1 or 3 channels, the model takes {channels}")
    try:
        with Image.open(path) as opened:
            image = opened.convert(_MODES[channels])
    except (OSError, UnidentifiedImageError, ValueError) as err:
        raise DataError(f"{path}: cannot be read as an image ({err})") from err
    if image.size != (width, height):
        if not resize:
            raise DataError(
                f"{path}: is {image.height} x {image.width} pixels, the model takes {height} x {width}; resize it, or "
                "let it be scaled (--resize)"
            )
        image = image.resize((width, height))
    pixels = np.asarray(image, dtype=np.float64).reshape(height, width, channels) / 255.0
    return scaled(np.moveaxis(pixels, -1, 0))


def scaled(pixels: NDArray[Any]) -> Pixels:
    """Pixels in [0, 1] as a model takes them."""
    return np.asarray(2.0 * pixels - 1.0, dtype=np.float32)
