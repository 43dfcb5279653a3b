# SPDX-License-Identifier: Apache-2.0
"""Where a room's GPU kernels are found, on machines that can compile them."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType


def gpu_kernels(name: str) -> ModuleType | None:
    """The module of that name, or None where triton is not installed."""
    try:
        return import_module(name)
    except ModuleNotFoundError as err:
        if err.name != "triton":  # our own broken import is not an absent compiler
            raise
        return None
