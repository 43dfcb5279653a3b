# SPDX-License-Identifier: Apache-2.0
"""A device that runs the CUDA sources on a CPU: compiled by g++ under shim.h, arrays are numpy's."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heatfhe.ckks.kernels.cuda import Buffer, signature, source
from heatfhe.ckks.kernels.cuda.device import NAMED

HERE = Path(__file__).parent
COMPILER = shutil.which("g++")
BARRIERS = ("deliver",)  # kernels that have some, beside the transforms


@lru_cache(maxsize=8)
def library(log_n: int) -> ctypes.CDLL:
    """The kernels of one ring dimension as a shared library, built in a folder that goes with the process."""
    text = source()
    names = re.findall(r'extern "C" __global__ void (?:__launch_bounds__\([^)]*\)\s*)?(\w+)\(', text)
    names += [f"{kind}_{beta}" for kind in ("switch_each", "switch_sum") for beta in range(1, 9)]
    names += [f"giant_sums_{g}" for g in range(1, 5)]
    exports = "\n".join(
        f'extern "C" void run_{name}(const unsigned* grid, unsigned threads, void** args) '
        f"{{ shim::launch({name}, grid, threads, {'true' if 'ntt_' in name or name in BARRIERS else 'false'}, args); }}"
        for name in names
        if not name.startswith("__") and name != "convert_tensor"  # which is for tensor cores alone
    )
    folder = tempfile.TemporaryDirectory(prefix="heatfhe-shim-")
    _FOLDERS.append(folder)
    path = Path(folder.name)
    (path / "kernels.cpp").write_text(f'#include "shim.h"\n{text}\n{exports}\n')
    assert COMPILER is not None
    command = [
        COMPILER, "-std=c++17", "-O2", "-U_FORTIFY_SOURCE", "-shared", "-fPIC", "-w", f"-DLOGN={log_n}", NAMED,
        f"-I{HERE}", str(path / "kernels.cpp"), "-o", str(path / "kernels.so"),
    ]  # fmt: skip
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(path / "kernels.so"))


_FOLDERS: list[tempfile.TemporaryDirectory[str]] = []


class ShimDevice:
    """heatfhe.ckks.kernels.cuda.Device on numpy arrays; recordings are plain calls."""

    name = "CPU, under the shim"
    tensor_cores = False
    keeps_temporaries = True

    def __init__(self, log_n: int) -> None:
        self._library = library(log_n)
        self.launches: list[str] = []
        self._shared: list[NDArray[np.uint8]] = []

    def empty(self, shape: tuple[int, ...]) -> Buffer:
        words = np.full(shape, 0xDEADBEEF, dtype=np.uint32)  # what is read before it is written shows
        return Buffer(int(words.ctypes.data), shape, words)

    temporary = empty

    def array(self, host: NDArray[Any]) -> Buffer:
        copied = np.array(host, order="C")
        return Buffer(int(copied.ctypes.data), copied.shape, copied)

    def host(self, x: Buffer) -> NDArray[np.uint32]:
        out = np.empty(x.shape, dtype=np.uint32)
        ctypes.memmove(out.ctypes.data, x.ptr, out.nbytes)
        return out

    def fourier(self, x: Buffer) -> None:
        lines, points, _ = x.shape
        values = (ctypes.c_double * (2 * lines * points)).from_address(x.ptr)
        spectra = np.frombuffer(values, dtype=np.complex128).reshape(lines, points)
        spectra[:] = np.fft.fft(spectra)

    def copy(self, target: int, source: int, size: int) -> None:
        ctypes.memmove(target, source, size)

    def launch(self, kernel: str, grid: tuple[int, int, int], block: int, *args: int) -> None:
        codes = signature(kernel)[1:]
        assert len(codes) == len(args), f"{kernel} takes {len(codes)} arguments, got {len(args)}"
        held = [KINDS[code](a) for code, a in zip(codes, args)]
        pointers = (ctypes.c_void_p * len(held))(*(ctypes.addressof(h) for h in held))
        getattr(self._library, f"run_{kernel}")((ctypes.c_uint * 3)(*grid), ctypes.c_uint(block), pointers)
        self.launches.append(kernel)

    def shared(self, size: int) -> int:
        self._shared.append(np.zeros(size, dtype=np.uint8))
        return int(self._shared[-1].ctypes.data)

    def captured(self, body: Callable[[], None], named: bool = False) -> Callable[[], None]:
        return body

    def record(self, body: Callable[..., Sequence[Buffer]], inputs: Sequence[Buffer]) -> None:
        return None

    def synchronize(self) -> None:
        pass

    def mark(self) -> int:
        return len(self.launches)

    def elapsed(self, first: int, then: int) -> float:
        return 1e-6 * (then - first)


KINDS: dict[str, Any] = {
    "Q": ctypes.c_uint64, "q": ctypes.c_int64, "i": ctypes.c_int32, "I": ctypes.c_uint32, "d": ctypes.c_double,
}  # fmt: skip
