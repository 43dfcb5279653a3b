# SPDX-License-Identifier: Apache-2.0
"""Where the clear engine's numbers are kept: numpy in memory, or CuPy on a GPU. Everything that tells them apart.

The engine makes no array of its own: it asks for one here, and otherwise uses operators and the module ``xp``. The
random numbers of refreshes are always numpy's, drawn in memory, so that a seed means the same noise on either. Those of
all other operations are a thousand times as many and are drawn where they are added: a seed there means another noise.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import partial, reduce
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heatfhe.engine.cycles import slotwise, stretched
from heatfhe.errors import ConfigError

Pairs = Sequence[tuple[Any, Any]]
PIECE = 1 << 15  # numbers of a linear map's input at a time
BLOCK, ROWS = 128, 8  # threads of a block and rows of a thread, as in linear.cu


class Arrays:
    """Arrays of numpy."""

    xp: Any = np
    room = 1 << 30  # bytes of plaintext vectors to keep

    def put(self, values: Any) -> Any:
        """An array from numpy's."""
        return np.asarray(values)

    def get(self, array: Any) -> NDArray[Any]:
        """numpy's array from one of these."""
        return np.asarray(array)

    def rolled(self, a: Any, by: int) -> Any:
        """Slots rotated to the left, or a cycle of them."""
        by %= a.shape[-1]
        return self.xp.roll(a, -by, axis=-1) if by else a

    def dot(self, pairs: Pairs) -> Any:
        """Sum of products of cycles with cycles or numbers."""
        groups: dict[int, list[tuple[Any, Any]]] = {}
        for a, b in pairs:
            p = max(x.shape[-1] for x in (a, b) if hasattr(x, "shape"))
            groups.setdefault(p, []).append((stretched(a, p), stretched(b, p) if hasattr(b, "shape") else b))
        return reduce(partial(slotwise, operator.add), [self._dot(group) for group in groups.values()])

    def linear(
        self, slots: Any, babies: Sequence[int], giants: Sequence[int], plains: Sequence[Sequence[Any]]
    ) -> Any:
        """A linear map of all slots by its diagonals, a row of cycles for each giant.

        Of a batch it takes a few rows at a time, so that rotated copies stay in a core's cache.
        """
        n, step = slots.shape[-1], max(1, PIECE // slots.shape[-1])
        flat = slots.reshape(-1, n)
        if flat.shape[0] > step:
            parts = (flat[i : i + step] for i in range(0, flat.shape[0], step))
            found = self.xp.concatenate([self.linear(part, babies, giants, plains) for part in parts])
            return found.reshape(*slots.shape)
        rolled = [self.rolled(slots, b) for b in babies]
        total = None
        for giant, row in zip(giants, plains):
            term = self.rolled(self.dot(list(zip(rolled, row))), giant)
            total = term if total is None else total + term
        return total

    def _dot(self, pairs: Pairs) -> Any:
        """Sum of products of as many slots, gathered in place: batches of windows are bound by memory."""
        out = self.xp.asarray(pairs[0][0] * pairs[0][1])
        room = self.xp.empty_like(out)
        for a, b in pairs[1:]:
            if _fits(out, a, b):
                out += self.xp.multiply(a, b, out=room)
            else:
                out = out + a * b
                room = self.xp.empty_like(out)
        return out

    def generator(self, seed: int | Sequence[int]) -> Any:
        """A source of random numbers for ``normal``."""
        return np.random.default_rng(seed)

    def normal(self, generator: Any, shape: tuple[int, ...]) -> Any:
        """An array of standard normal numbers."""
        return self.put(generator.standard_normal(shape))

    def wait(self) -> None:
        """Until everything asked for is done."""


class GpuArrays(Arrays):
    """Arrays of CuPy on the current GPU. A product is added by one kernel, which reads and writes each number once."""

    room = 32 << 30

    def __init__(self) -> None:
        from heatfhe.ckks import found_cupy

        self.xp = found_cupy("the clear engine on a GPU")
        self._add_product = self.xp.ElementwiseKernel("A a, B b", "C out", "out += a * b", "heatfhe_add_product")
        self._linear = self.xp.RawModule(code=(Path(__file__).parent / "linear.cu").read_text(), backend="nvrtc")

    def put(self, values: Any) -> Any:
        return self.xp.asarray(values)

    def get(self, array: Any) -> NDArray[Any]:
        return np.asarray(self.xp.asnumpy(array))

    def generator(self, seed: int | Sequence[int]) -> Any:
        return self.xp.random.default_rng(np.random.SeedSequence(seed).generate_state(1, np.uint64).item())

    def normal(self, generator: Any, shape: tuple[int, ...]) -> Any:
        return generator.standard_normal(shape)

    def linear(
        self, slots: Any, babies: Sequence[int], giants: Sequence[int], plains: Sequence[Sequence[Any]]
    ) -> Any:
        xp, n = self.xp, slots.shape[-1]
        diagonals = [d for row in plains for d in row]
        kind = np.result_type(*{d.dtype for d in diagonals}, np.float64)
        diagonals = [xp.ascontiguousarray(d, dtype=kind) for d in diagonals]
        x = xp.ascontiguousarray(slots, dtype=np.result_type(slots.dtype, np.float64))
        y = xp.empty(x.shape, dtype=np.result_type(x.dtype, kind))
        rows = x.size // n
        kernel = self._linear.get_function(f"linear_{x.dtype.char}{kind.char}")
        kernel((-(-n // BLOCK), -(-rows // ROWS)), (BLOCK,), (
            x, y, xp.asarray(np.array([d.data.ptr for d in diagonals], dtype=np.uint64)),
            *(xp.asarray(np.array(row, dtype=np.int32)) for row in ([d.size - 1 for d in diagonals], giants, babies)),
            np.int32(len(giants)), np.int32(len(babies)), np.int32(rows), np.int32(n),
        ))  # fmt: skip
        return y

    def _dot(self, pairs: Pairs) -> Any:
        out = pairs[0][0] * pairs[0][1]
        for a, b in pairs[1:]:
            if _fits(out, a, b):
                self._add_product(a, self.xp.asarray(b), out)  # a number becomes an array: the kernel needs its type
            else:
                out = out + a * b
        return out

    def wait(self) -> None:
        self.xp.cuda.get_current_stream().synchronize()


def arrays_on(device: str) -> Arrays:
    """The arrays of a device: cpu or cuda."""
    if device not in ("cpu", "cuda"):
        raise ConfigError(f"the clear engine runs on cpu or cuda, not {device!r}")
    return Arrays() if device == "cpu" else GpuArrays()


def _fits(out: Any, a: Any, b: Any) -> bool:
    """Whether a product can be added to out in place; one factor has its shape, the other is a vector, or as large."""
    whole = a.shape == out.shape and getattr(b, "shape", ()) in ((), out.shape[-1:], out.shape)
    return whole and (out.dtype.kind == "c" or not (_complex(a) or _complex(b)))


def _complex(x: Any) -> bool:
    return x.dtype.kind == "c" if hasattr(x, "dtype") else isinstance(x, complex)
