# SPDX-License-Identifier: Apache-2.0
"""Where CUDA kernels run: memory, launches and recordings of one GPU through CuPy.

A launch costs the host a few microseconds: arguments are packed into one buffer by the signature read from the source,
and the driver is called directly.
"""

from __future__ import annotations

import ctypes
import re
import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib import resources
from math import prod
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from heatfhe.ckks.kernels.cuda.found import found_cupy
from heatfhe.errors import EngineError

SOURCES = (
    "words.cuh", "transforms.cu", "conversions.cu", "tensor_conversions.cu", "switching.cu", "limbs.cu", "expand.cu",
)  # fmt: skip
OPTIONS = ("-std=c++17",)
NAMED = "-DNAMED"  # kernels whose operands are named by cells
WORD = 4  # bytes
RING = 64 << 20  # pinned memory through which small arrays go to the GPU
STAGED = RING // 16  # bytes of what counts as small
Recording = Callable[[Sequence["Buffer"]], list["Buffer"]]


class Buffer:
    """Memory of a device: an address, a shape, and the words from one entry of the first axis to the next."""

    __slots__ = ("owner", "ptr", "shape", "stride")

    def __init__(self, ptr: int, shape: tuple[int, ...], owner: Any, stride: int | None = None) -> None:
        self.ptr, self.shape, self.owner = ptr, shape, owner
        self.stride = prod(shape[1:]) if stride is None else stride

    @property
    def nbytes(self) -> int:
        return WORD * prod(self.shape)


def source() -> str:
    """Every kernel, as one text."""
    folder = resources.files(__package__)
    return "\n".join(f'#line 1 "{name}"\n{folder.joinpath(name).read_text()}' for name in SOURCES)


@lru_cache(maxsize=1)
def signatures() -> dict[str, str]:
    """How each kernel's arguments are packed, as struct says it. A name that ends in _ stands for its instances."""
    codes = {"int": "i", "u32": "I", "i64": "q", "double": "d"}
    text = re.sub(r"//[^\n]*|\\\n", " ", source())
    found = re.findall(
        r'extern "C" __global__ void\s+(?:__launch_bounds__\([^)]*\)\s*)?(\w+)(?:##\w+)?\s*\(([^)]*)\)', text
    )
    return {
        name: "@" + "".join("Q" if "*" in p else codes[p.split()[-2]] for p in parameters.split(","))
        for name, parameters in found
    }


def signature(kernel: str) -> str:
    """How a kernel's arguments are packed."""
    every = signatures()
    return every.get(kernel) or every[kernel.rstrip("0123456789")]


class Device(Protocol):
    """What CudaKernels needs of a device; the tests have one that runs the same sources on a CPU."""

    name: str
    tensor_cores: bool  # whether it has them, for doubles
    keeps_temporaries: bool  # whether a recording must hold its temporaries itself

    def empty(self, shape: tuple[int, ...]) -> Buffer:
        """Uninitialised words."""

    def temporary(self, shape: tuple[int, ...]) -> Buffer:
        """Words that only recordings use: once let go, others may be given them, but nobody else."""

    def array(self, host: NDArray[Any]) -> Buffer:
        """A copy of any small or large array on the device."""

    def host(self, x: Buffer) -> NDArray[np.uint32]:
        """A copy of contiguous words on the host; waits for it."""

    def copy(self, target: int, source: int, size: int) -> None:
        """Bytes from one address to another."""

    def fourier(self, x: Buffer) -> None:
        """The discrete Fourier transform of each line of complex doubles (lines, points, 4), in place."""

    def launch(self, kernel: str, grid: tuple[int, int, int], block: int, *args: int | float) -> None:
        """Start a kernel; arguments are addresses and numbers."""

    def shared(self, size: int) -> int:
        """The address of memory that the host writes and kernels read; it stays."""

    def captured(self, body: Callable[[], None], named: bool = False) -> Callable[[], None]:
        """What body launches, as one thing to start; named where its kernels are given cells."""

    def record(self, body: Callable[..., Sequence[Buffer]], inputs: Sequence[Buffer]) -> Recording | None:
        """A replayable recording of body on inputs like these, or None where the device has none."""

    def synchronize(self) -> None: ...

    def mark(self) -> Any:
        """A moment between launches."""
        ...

    def elapsed(self, first: Any, then: Any) -> float:
        """Seconds between two moments that have passed."""
        ...


class CupyDevice:
    """The current GPU: one stream, sources compiled by NVRTC and kept by CuPy, by architecture and their own hash."""

    def __init__(self, log_n: int) -> None:
        cupy = found_cupy("the native engine on a GPU")
        self._cupy, self._runtime = cupy, cupy.cuda.runtime
        self._stream = cupy.cuda.Stream(non_blocking=True)
        properties = self._runtime.getDeviceProperties(cupy.cuda.Device().id)
        self.name = f"{properties['name'].decode()}, CUDA {self._runtime.driverGetVersion() / 1000:g}"
        self._pool = self._common = cupy.cuda.MemoryPool()
        self._arena = cupy.cuda.MemoryPool()  # temporaries of recordings, which never run at the same time
        self.keeps_temporaries = False
        self.tensor_cores = int(cupy.cuda.Device().compute_capability) >= 90
        self._options, self._modules = (*OPTIONS, f"-DLOGN={log_n}"), dict[bool, Any]()
        self._named = False  # whether operands are named by cells, in what is launched now
        self._functions: dict[tuple[bool, str], tuple[Any, ...]] = {}
        self._held: list[Any] = []
        self._launch = ctypes.CDLL("libcuda.so.1").cuLaunchKernel  # whole numbers pass as C's int, the rest typed
        self._queue = ctypes.c_void_p(self._stream.ptr)
        self._pinned, self._turn = cupy.cuda.alloc_pinned_memory(RING), 0
        self._transforms: dict[tuple[int, int], Any] = {}

    @property
    def used(self) -> int:
        """Bytes taken from the GPU."""
        return int(self._common.total_bytes() + self._arena.total_bytes())

    def _malloc(self, size: int) -> Any:
        try:
            return self._pool.malloc(size)
        except self._cupy.cuda.memory.OutOfMemoryError as err:
            free, total = self._runtime.memGetInfo()
            raise EngineError(
                f"the GPU has {free / 2**30:.1f} of {total / 2**30:.1f} GiB free and {size / 2**30:.2f} GiB more are "
                "needed; lower the engine's cache_bytes or use a larger GPU"
            ) from err

    def empty(self, shape: tuple[int, ...]) -> Buffer:
        owner = self._malloc(WORD * prod(shape))
        return Buffer(owner.ptr, shape, owner)

    def temporary(self, shape: tuple[int, ...]) -> Buffer:
        self._pool = self._arena
        try:
            return self.empty(shape)
        finally:
            self._pool = self._common

    def array(self, host: NDArray[Any]) -> Buffer:
        host = np.ascontiguousarray(host)
        owner = self._malloc(max(host.nbytes, 1))
        staged = self._staged(host) if host.nbytes <= STAGED else host.ctypes.data
        self._runtime.memcpyAsync(owner.ptr, staged, host.nbytes, 1, self._stream.ptr)
        if host.nbytes > STAGED:
            self._stream.synchronize()  # the host's memory may go
        return Buffer(owner.ptr, host.shape, owner)

    def _staged(self, host: NDArray[Any]) -> int:
        """A copy in pinned memory, from which the GPU reads while we go on; it is used in turns."""
        size = -(-host.nbytes // 256) * 256
        if self._turn + size > RING:
            self._stream.synchronize()
            self._turn = 0
        place = self._pinned.ptr + self._turn
        ctypes.memmove(place, host.ctypes.data, host.nbytes)
        self._turn += size
        return int(place)

    def fourier(self, x: Buffer) -> None:
        cupy, (lines, points, _) = self._cupy, x.shape
        memory = cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(x.ptr, x.nbytes, x.owner), 0)
        values = cupy.ndarray((lines, points), dtype=np.complex128, memptr=memory)
        with self._stream:
            if (lines, points) not in self._transforms:
                self._transforms[lines, points] = cupy.cuda.cufft.Plan1d(points, cupy.cuda.cufft.CUFFT_Z2Z, lines)
            self._transforms[lines, points].fft(values, values, cupy.cuda.cufft.CUFFT_FORWARD)

    def host(self, x: Buffer) -> NDArray[np.uint32]:
        out = np.empty(x.shape, dtype=np.uint32)
        self._runtime.memcpyAsync(out.ctypes.data, x.ptr, out.nbytes, 2, self._stream.ptr)
        self._stream.synchronize()
        return out

    def copy(self, target: int, source: int, size: int) -> None:
        self._runtime.memcpyAsync(target, source, size, 3, self._stream.ptr)

    def _module(self) -> Any:
        if self._named not in self._modules:
            options = (*self._options, NAMED) if self._named else self._options
            self._modules[self._named] = self._cupy.RawModule(code=source(), options=options, backend="nvrtc")
        return self._modules[self._named]

    def _function(self, kernel: str) -> tuple[Any, ...]:
        """A kernel's handle, how its arguments are packed, where, and how the driver is told of it."""
        packer = struct.Struct(signature(kernel))
        buffer, size = ctypes.create_string_buffer(packer.size), ctypes.c_size_t(packer.size)
        # CU_LAUNCH_PARAM_BUFFER_POINTER, the buffer, CU_LAUNCH_PARAM_BUFFER_SIZE, its size, CU_LAUNCH_PARAM_END
        extra = (ctypes.c_void_p * 5)(1, ctypes.addressof(buffer), 2, ctypes.addressof(size), 0)
        handle = ctypes.c_void_p(self._module().get_function(kernel).kernel.ptr)
        self._held.append(size)
        found = self._functions[self._named, kernel] = handle, packer.pack_into, buffer, extra
        return found

    def launch(self, kernel: str, grid: tuple[int, int, int], block: int, *args: int | float) -> None:
        function, pack, buffer, extra = self._functions.get((self._named, kernel)) or self._function(kernel)
        pack(buffer, 0, *args)
        failed = self._launch(function, *grid, block, 1, 1, 0, self._queue, None, extra)
        if failed:
            raise EngineError(f"the GPU refused to start {kernel}: CUDA error {failed}")

    def shared(self, size: int) -> int:
        self._held.append(self._cupy.cuda.alloc_pinned_memory(size))
        return int(self._held[-1].ptr)

    def captured(self, body: Callable[[], None], named: bool = False) -> Callable[[], None]:
        """One CUDA graph."""
        stream, self._named = self._stream, named
        self._module()  # which is no thing to do during a capture
        stream.begin_capture()
        try:
            body()
        finally:
            graph, self._named = stream.end_capture(), False
        return lambda: graph.launch(stream)

    def record(self, body: Callable[..., Sequence[Buffer]], inputs: Sequence[Buffer]) -> Recording:
        """One CUDA graph. Inputs are copied in, results are copied out; temporaries live in the common arena."""
        held = [self.empty(x.shape) for x in inputs]
        results: list[Buffer] = []
        self._pool = self._arena
        try:
            start = self.captured(lambda: results.extend(body(*held)))
        finally:
            self._pool = self._common

        def play(now: Sequence[Buffer]) -> list[Buffer]:
            for place, x in zip(held, now):
                self.copy(place.ptr, x.ptr, x.nbytes)
            start()
            out = [self.empty(r.shape) for r in results]
            for place, r in zip(out, results):
                self.copy(place.ptr, r.ptr, r.nbytes)
            return out

        return play

    def synchronize(self) -> None:
        self._stream.synchronize()

    def mark(self) -> Any:
        event = self._cupy.cuda.Event()
        event.record(self._stream)
        return event

    def elapsed(self, first: Any, then: Any) -> float:
        return float(self._cupy.cuda.get_elapsed_time(first, then)) / 1e3
