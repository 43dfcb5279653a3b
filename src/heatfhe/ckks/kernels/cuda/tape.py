# SPDX-License-Identifier: Apache-2.0
"""A short operation as launches recorded once and started together, with other operands each time; nothing is copied.

A CUDA graph has its operands at fixed addresses, and copying them in and out would cost a short operation a tenth of
its time. So its kernels are given the addresses of cells instead (see ``operand`` in words.cuh), and its first kernel
fills those cells from a ring that the host writes. Temporaries stay where they were recorded: recordings never run at
the same time.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heatfhe.ckks.kernels.cuda.device import Buffer, Device, Recording
from heatfhe.errors import EngineError

CELLS = 64  # as ``deliver`` has them
LINES = 1024  # plays that may be under way


class Mailbox:
    """Cells on the device for the operands of whatever is played next, and the ring through which they are filled."""

    def __init__(self, device: Device) -> None:
        self._device, self._line = device, 0
        self._cells = device.array(np.zeros(CELLS, dtype=np.uint64))
        self._turn = device.array(np.zeros(1, dtype=np.uint32))
        self._address = device.shared(8 * CELLS * LINES)
        self._ring = np.ctypeslib.as_array((ctypes.c_uint64 * (CELLS * LINES)).from_address(self._address))

    def cell(self, index: int) -> int:
        """What a kernel is given in place of an operand's address."""
        return self._cells.ptr + 8 * index + 1

    def deliver(self) -> None:
        """The kernel that fills the cells."""
        self._device.launch("deliver", (1, 1, 1), 32, self._address, self._cells.ptr, self._turn.ptr, LINES)

    def post(self, addresses: Sequence[int]) -> None:
        """What the next play finds in its cells."""
        if self._line == LINES:  # every line is in use: wait until they are read
            self._device.synchronize()
            self._line = 0
        start = CELLS * self._line
        self._ring[start : start + len(addresses)] = addresses
        self._line += 1


class TapeFull(Exception):
    """An operation with more operands than there are cells: it is not recorded."""


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
        raise TapeFull("a copy is no kernel")

    def array(self, host: NDArray[Any]) -> Buffer:
        raise EngineError("a recorded operation makes data on the host; run it once before it is recorded")

    def host(self, x: Buffer) -> NDArray[np.uint32]:
        raise EngineError("a recorded operation reads data on the host; it cannot be recorded")

    def fourier(self, x: Buffer) -> None:
        raise EngineError("a recorded operation encodes; keep what it encodes before it is recorded")

    def shared(self, size: int) -> int:
        raise EngineError("a recorded operation asks for memory of the host; it cannot be recorded")

    def captured(self, body: Callable[[], None], named: bool = False) -> Callable[[], None]:
        return body

    def record(self, body: Callable[..., Sequence[Buffer]], inputs: Sequence[Buffer]) -> Recording | None:
        return None

    def synchronize(self) -> None:
        """Nothing is under way."""

    def mark(self) -> Any:
        raise EngineError("a recorded operation is timed from outside")

    def elapsed(self, first: Any, then: Any) -> float:
        return self._device.elapsed(first, then)


class Tape:
    """What a recorder heard, with operands and results found among the arguments by their addresses."""

    def __init__(
        self,
        device: Device,
        mailbox: Mailbox,
        recorder: TapeRecorder,
        inputs: Sequence[Buffer],
        results: Sequence[Buffer],
    ) -> None:
        places = [next(h for h in recorder.held if h.ptr <= r.ptr < h.ptr + h.nbytes) for r in results]
        fresh = [h for h in dict.fromkeys(places) if h not in inputs]  # what results lie in
        operands = [*inputs, *fresh]
        self._device, self._mailbox, self._shapes = device, mailbox, [h.shape for h in fresh]
        self._results = [
            (operands.index(h), r.ptr - h.ptr, r.shape, r.stride) for h, r in zip(places, results)
        ]  # fmt: skip
        self._kept = recorder.held if device.keeps_temporaries else None
        cells: dict[tuple[int, int], int] = {}  # which operand, how far in

        def told(argument: Any) -> Any:
            if isinstance(argument, int):
                for which, x in enumerate(operands):
                    if x.ptr <= argument < x.ptr + x.nbytes:
                        return mailbox.cell(cells.setdefault((which, argument - x.ptr), len(cells)))
            return argument

        launches = [(kernel, grid, block, [told(a) for a in args]) for kernel, grid, block, args in recorder.launches]
        self._cells = tuple(cells)
        if len(cells) > CELLS:
            raise TapeFull(f"{len(cells)} operands and parts of operands, of at most {CELLS}")

        def body() -> None:
            mailbox.deliver()
            for kernel, grid, block, args in launches:
                device.launch(kernel, grid, block, *args)

        self._start = device.captured(body, named=True)

    def play(self, inputs: Sequence[Buffer]) -> list[Buffer]:
        """The operation on other operands of the same shapes."""
        operands = [*inputs, *map(self._device.empty, self._shapes)]
        bases = [x.ptr for x in operands]
        self._mailbox.post([bases[which] + far for which, far in self._cells])
        self._start()
        return [
            Buffer(bases[which] + far, shape, operands[which].owner, stride)
            for which, far, shape, stride in self._results
        ]
