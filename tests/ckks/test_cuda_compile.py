# SPDX-License-Identifier: Apache-2.0
"""The compiler that runs on a user's machine takes every CUDA source: NVRTC, from its own package, without a GPU."""

from __future__ import annotations

import ctypes
import importlib.util
from pathlib import Path

import pytest

from heatfhe.ckks.kernels.cuda import source
from heatfhe.ckks.kernels.cuda.device import NAMED, OPTIONS, signatures


def library() -> Path | None:
    """libnvrtc of the installed package."""
    found = importlib.util.find_spec("nvidia")
    folders = [Path(p) for p in found.submodule_search_locations or ()] if found else []
    return next((so for folder in folders for so in folder.glob("**/libnvrtc.so.*") if "builtins" not in so.name), None)


@pytest.mark.skipif(library() is None, reason="NVRTC is not installed (pip install nvidia-cuda-nvrtc)")
@pytest.mark.parametrize("more", [(), (NAMED,)])
@pytest.mark.parametrize(("log_n", "architecture"), [(16, "sm_90"), (11, "sm_90"), (16, "sm_80")])
def test_nvrtc_compiles_every_kernel(log_n: int, architecture: str, more: tuple[str, ...]) -> None:
    path = library()
    assert path is not None
    nvrtc = ctypes.CDLL(str(path))
    program = ctypes.c_void_p()
    text = source().encode()
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), text, b"kernels.cu", 0, None, None) == 0
    options = [*OPTIONS, *more, f"-DLOGN={log_n}", f"--gpu-architecture={architecture}"]
    given = (ctypes.c_char_p * len(options))(*(o.encode() for o in options))
    failed = nvrtc.nvrtcCompileProgram(program, len(options), given)
    size = ctypes.c_size_t()
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, log)
    assert not failed, log.value.decode()
    assert nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size)) == 0
    cubin = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetCUBIN(program, cubin)
    for name in signatures():
        if architecture == "sm_90" or name != "convert_tensor":  # which needs its tensor cores
            assert name.encode() in cubin.raw, name
