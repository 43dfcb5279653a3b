# SPDX-License-Identifier: Apache-2.0
"""Figures that commands write beside their numbers, where matplotlib is installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from heatfhe.files import atomic_write


def drawing() -> bool:
    """Whether figures can be drawn on this machine."""
    return find_spec("matplotlib") is not None


@contextmanager
def canvas(path: Path, columns: int = 1, **options: Any) -> Iterator[Any]:
    """Axes, or a row of them, whose picture appears under its name when the block ends without an error."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, columns, figsize=(7 * columns, 4.5), **options)
    try:
        yield axes
        with atomic_write(path) as f:
            figure.savefig(f, format="png", dpi=150, bbox_inches="tight")
    finally:
        pyplot.close(figure)
