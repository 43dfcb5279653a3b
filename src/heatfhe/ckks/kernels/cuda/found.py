# SPDX-License-Identifier: Apache-2.0
"""CuPy, if it is installed and finds a GPU."""

from __future__ import annotations

from typing import Any

from heatfhe.errors import ConfigError, MissingExtraError


def found_cupy(user: str) -> Any:
    """The module, for the part of the package that is named; says what is missing."""
    try:
        import cupy
    except ModuleNotFoundError as err:
        if err.name != "cupy":
            raise
        raise MissingExtraError("cuda", needed_by=user) from err
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as err:
        raise ConfigError(f"no usable NVIDIA driver: {err}; use --device cpu, or install a driver") from err
    if count == 0:
        raise ConfigError("no NVIDIA GPU found; use --device cpu")
    return cupy
