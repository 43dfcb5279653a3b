# SPDX-License-Identifier: Apache-2.0
"""Images as arrays: digits that are split the same way every time, and files of a folder."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from heatfhe.errors import DataError, MissingExtraError
from heatfhe.images import digits, image_files, read_image


def test_digits_are_split_once_and_for_all() -> None:
    pytest.importorskip("sklearn")
    (pixels, labels), (held, wanted) = digits(), digits(held_out=True)
    assert pixels.shape == (1437, 1, 8, 8)
    assert held.shape == (360, 1, 8, 8)
    assert (float(pixels.min()), float(pixels.max()), pixels.dtype) == (-1.0, 1.0, np.float32)
    assert set(labels) == set(wanted) == set(range(10))
    assert np.array_equal(digits(held_out=True)[1], wanted)
    assert len({row.tobytes() for row in np.concatenate([pixels, held])}) == 1797


def test_files_are_read_scaled_and_refused(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    grey = (np.arange(64).reshape(8, 8) * 4).astype(np.uint8)
    image.fromarray(grey).save(tmp_path / "b.png")
    image.new("RGB", (16, 8), (255, 0, 51)).save(tmp_path / "a.png")
    (tmp_path / "notes.txt").write_text("no image")
    files = image_files(tmp_path)
    assert [f.name for f in files] == ["a.png", "b.png"]
    assert np.abs(read_image(files[1], (1, 8, 8))[0] - (grey / 127.5 - 1)).max() < 1e-6
    colours = read_image(files[0], (3, 8, 8), resize=True)
    assert np.allclose(colours[:, 0, 0], [1.0, -1.0, -0.6], atol=1e-6)
    with pytest.raises(DataError, match=r"a.png: is 8 x 16 pixels, the model takes 8 x 8; resize it"):
        read_image(files[0], (3, 8, 8))
    with pytest.raises(DataError, match="1 or 3 channels, the model takes 2"):
        read_image(files[0], (2, 8, 8))
    with pytest.raises(DataError, match="cannot be read as an image"):
        read_image(tmp_path / "notes.txt", (1, 8, 8))
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="holds no image"):
        image_files(tmp_path / "empty")


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("sklearn", "sklearn.datasets", "PIL"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtraError, match=r"heatfhe\[images\]"):
        digits()
    with pytest.raises(MissingExtraError, match=r"heatfhe\[images\]"):
        read_image(tmp_path / "a.png", (1, 8, 8))
