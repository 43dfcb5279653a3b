# SPDX-License-Identifier: Apache-2.0
"""A short operation as a list of launches, played again with other operands: no tables to look up, nothing to copy.

A CUDA graph has its operands at fixed addresses, so they are copied in and out. For a dozen kernels it is cheaper to
start each again with the addresses of this call. Temporaries stay where they were recorded: recordings never run at the
same time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heatfhe.ckks.kernels.cuda.device import Buffer, Device, Recording
from heatfhe.errors import EngineError


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel, or a copy where it has no name; moves say which arguments are operands: place, which, how far in."""

    kernel: str
    grid: tuple[int, int, int]
    block: int
    args: tuple[Any, ...]
    moves: tuple[tuple[int, int, int], ...]


class TapeRecorder:
    """A device that starts nothing and remembers what it was asked for."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self.name, self.tensor_cores = device.name, device.tensor_cores
        self.keeps_temporaries = device.keeps_temporaries
        self.launches: list[tuple[str, tuple[int, int, int], int, tuple[Any, ...]]] = []
        self.held: list[Buffer] = []  # nothing is used twice within a recording: results have addresses of their own

    def empty(self, shape: tuple[int, ...]) -> Buffer:
        self.held.append(self._device.temporary(shape))
        return self.held[-1]

    temporary = empty

    def launch(self, kernel: str, grid: tuple[int, int, int], block: int, *args: int | float) -> None:
        self.launches.append((kernel, grid, block, args))

    def copy(self, target: int, source: int, size: int) -> None:
        self.launches.append(("", (1, 1, 1), 1, (target, source, size)))

    def array(self, host: NDArray[Any]) -> Buffer:
        raise EngineError("a recorded operation makes data on the host; run it once before it is recorded")

    def host(self, x: Buffer) -> NDArray[np.uint32]:
        raise EngineError("a recorded operation reads data on the host; it cannot be recorded")

    def fourier(self, x: Buffer) -> None:
        raise EngineError("a recorded operation encodes; keep what it encodes before it is recorded")

    def record(self, body: Callable[..., Sequence[Buffer]], inputs: Sequence[Buffer]) -> Recording | None:
        return None

    def synchronize(self) -> None:
        """Nothing is under way."""


class Tape:
    """What a recorder heard, with operands and results found among the arguments by their addresses."""

    def __init__(
        self, device: Device, recorder: TapeRecorder, inputs: Sequence[Buffer], results: Sequence[Buffer]
    ) -> None:
        places = [next(h for h in recorder.held if h.ptr <= r.ptr < h.ptr + h.nbytes) for r in results]
        fresh = [h for h in dict.fromkeys(places) if h not in inputs]  # what results lie in
        operands = [*inputs, *fresh]
        self._device, self._shapes = device, [h.shape for h in fresh]
        self._results = [
            (operands.index(h), r.ptr - h.ptr, r.shape, r.stride) for h, r in zip(places, results)
        ]  # fmt: skip
        self._kept = recorder.held if device.keeps_temporaries else None
        self._launches = []
        for kernel, grid, block, args in recorder.launches:
            moves = [
                (place, which, a - x.ptr)
                for place, a in enumerate(args)
                for which, x in enumerate(operands)
                if isinstance(a, int) and x.ptr <= a < x.ptr + x.nbytes
            ]
            self._launches.append(Launch(kernel, grid, block, args, tuple(moves)))

    def play(self, inputs: Sequence[Buffer]) -> list[Buffer]:
        """The operation on other operands of the same shapes."""
        device = self._device
        operands = [*inputs, *(device.empty(shape) for shape in self._shapes)]
        bases = [x.ptr for x in operands]
        for launch in self._launches:
            args: Any = launch.args
            if launch.moves:
                args = list(args)
                for place, which, delta in launch.moves:
                    args[place] = bases[which] + delta
            if launch.kernel:
                device.launch(launch.kernel, launch.grid, launch.block, *args)
            else:
                device.copy(*args)
        return [
            Buffer(bases[which] + delta, shape, operands[which].owner, stride)
            for which, delta, shape, stride in self._results
        ]
