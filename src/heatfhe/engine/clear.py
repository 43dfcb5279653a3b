# SPDX-License-Identifier: Apache-2.0
"""The clear engine: the meaning of every instruction in float64, with levels, magnitudes and keys enforced.

It encrypts nothing. Values may carry leading axes of independent sequences, so that many windows run as one: on a GPU
(``device="cuda"``) a step of 64 windows takes little longer than a step of one. Slots that repeat are kept once.
"""

from __future__ import annotations

import io
import math
import operator
import re
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from heatfhe.ckks import Params
from heatfhe.engine.arrays import Arrays, arrays_on
from heatfhe.engine.cycles import by_cycle, cycled, shortest, slotwise, stretched
from heatfhe.engine.normals import standard_normals
from heatfhe.engine.protocol import KeyRequest, KeySource, Plain, check_rotation
from heatfhe.engine.rounding import OperationNoise
from heatfhe.errors import ConfigError, EngineError, MissingKeyError, OutOfLevelsError, WireError
from heatfhe.planning import LinearMap, Vector

MAGIC = b"heatfhe-clear-value\n"
_ARRAY = re.compile(
    rb"\x93NUMPY\x01\x00(?P<length>..)(?P<text>\{'descr': '(?P<dtype><(?:f4|f8|c8|c16))', 'fortran_order': False, "
    rb"'shape': \((?P<shape>[0-9]{1,9},(?: [0-9]{1,9}(?:, [0-9]{1,9})?)?)\), \} *\n)",
    re.DOTALL,
)
PASSING = 64  # vectors of one position kept at once: all layers of a model ask for the same masks
Noise = Callable[[NDArray[np.float64], float, np.random.Generator], NDArray[np.float64]]
"""(periods of the values, (..., period), their bound, generator) -> what a bootstrap adds. All in memory.

One that has an attribute ``reads``, and that is False, looks at the shape of the values alone: it is given zeros."""


@dataclass(frozen=True, slots=True, eq=False)
class ClearValue:
    """A value in the open, where the engine keeps it, and the level it pretends to have.

    ``cycle`` (..., p) are slots that follow each other ``times`` times.
    """

    cycle: Any
    level: int
    times: int = 1

    @property
    def slots(self) -> Any:
        """All slots (..., n)."""
        return stretched(self.cycle, self.cycle.shape[-1] * self.times)


@dataclass(frozen=True, slots=True, kw_only=True)
class BootstrapNoise:
    """Gaussian noise of a bootstrap: standard deviation ``sigma`` on every slot, whatever the value's size.

    ``floor`` is a relative floor: no less than floor times the bound. Measured noise is ``heatfhe.engine.noise``'s.
    """

    reads: ClassVar[bool] = False
    sigma: float = 0.0
    floor: float = 0.0

    def __post_init__(self) -> None:
        if self.sigma < 0 or self.floor < 0:
            raise ConfigError("a bootstrap's noise cannot be negative")

    def deviation(self, bound: float) -> float:
        """Standard deviation on a value of at most this magnitude."""
        return max(self.sigma, self.floor * bound)

    def __call__(self, values: NDArray[np.float64], bound: float, rng: np.random.Generator) -> NDArray[np.float64]:
        return self.deviation(bound) * standard_normals(rng, values.shape)


class ClearEngine:
    """Executes steps on slot vectors. Refuses what a real engine could not do: spent levels, missing keys, overflow."""

    def __init__(
        self,
        params: Params,
        *,
        request: KeyRequest | None = None,
        noise: Noise | None = None,
        rng: np.random.Generator | None = None,
        strict: bool = True,
        lenient: bool = False,
        cache_bytes: int | None = None,
        device: str | Arrays = "cpu",
        rounding: OperationNoise | None = None,
    ) -> None:
        """With a ``request`` only its rotations are allowed; ``strict`` False refreshes whatever a real engine would
        destroy: magnitudes outside their bounds, imaginary parts, values that do not repeat.

        A ``lenient`` engine goes on where a refresh meets more than it was planned for but no more than the parameters'
        reach, as a real one would: ``exceeded`` counts such refreshes, ``furthest`` is the largest ratio met.
        ``cache_bytes`` bounds the plaintext vectors kept between steps (default: 1 GiB, 32 GiB on a GPU); ``device`` is
        where numbers are kept, cpu or cuda. ``noise`` is that of refreshes, ``rounding`` that of all other operations;
        with it a refresh takes the mean of a value's repetitions, and then errs in each of them by itself, as a real
        one does: most of its error is made in the slots, by its last products.
        """
        if noise is not None and rng is None:
            raise ConfigError("noise needs a generator: pass rng=numpy.random.default_rng(seed)")
        self._params, self.request, self.noise, self.rng, self.strict = params, request, noise, rng, strict
        self.rounding = rounding
        self._lenient, self.exceeded, self.furthest = lenient, 0, 1.0
        self._reach = None if request is None else request.reach(params.slots)
        self._arrays = arrays_on(device) if isinstance(device, str) else device
        self._encoded: dict[Hashable, Any] = {}
        self._passing: dict[Hashable, Any] = {}
        self._room = self._arrays.room if cache_bytes is None else cache_bytes

    @property
    def params(self) -> Params:
        return self._params

    @property
    def slots(self) -> int:
        """Slots of a value."""
        return self._params.slots

    # -- values -----------------------------------------------------------------------------------------------------

    def value(self, slots: NDArray[Any], level: int | None = None) -> ClearValue:
        """A value from its slots (..., n), as a client's encryption would give it."""
        level = self._params.levels if level is None else level
        if slots.shape[-1] != self.slots:
            raise EngineError(f"a value has {self.slots} slots, got {slots.shape[-1]}")
        if not 0 <= level <= self._params.levels:
            raise EngineError(f"level {level} lies outside 0..{self._params.levels}")
        return self._value(self._erring("encrypted", self._arrays.put(shortest(slots))), level)

    def read(self, a: ClearValue) -> NDArray[Any]:
        """Slots of a value, in memory."""
        return np.asarray(stretched(self._arrays.get(a.cycle), a.cycle.shape[-1] * a.times))

    def _value(self, cycle: Any, level: int) -> ClearValue:
        return ClearValue(cycle, level, self.slots // cycle.shape[-1])

    def level(self, a: ClearValue) -> int:
        return a.level

    @property
    def records(self) -> bool:
        """Nothing is recorded."""
        return False

    def replay(
        self, name: Hashable, body: Callable[[Sequence[ClearValue]], Sequence[ClearValue]], values: Sequence[ClearValue]
    ) -> Sequence[ClearValue]:
        return body(values)

    def synchronize(self) -> None:
        self._arrays.wait()

    def dump(self, a: ClearValue) -> bytes:
        buffer = io.BytesIO()
        np.save(buffer, np.ascontiguousarray(self.read(a)), allow_pickle=False)
        return MAGIC + a.level.to_bytes(2, "little") + buffer.getvalue()

    def parse(self, blob: bytes) -> ClearValue:
        if not blob.startswith(MAGIC):
            raise WireError("not a value of the clear engine; client and server use different engines")
        body = blob[len(MAGIC) :]
        slots = _read_array(body[2:])
        if slots.ndim < 1 or not slots.size or slots.shape[-1] != self.slots or not np.isfinite(slots).all():
            raise WireError(f"a value must be finite numbers in {self.slots} slots")
        level = int.from_bytes(body[:2], "little")
        if level > self._params.levels:
            raise WireError(f"a value claims level {level}, the parameters have {self._params.levels}")
        return self._value(self._arrays.put(slots), level)

    # -- free instructions ------------------------------------------------------------------------------------------

    def add(self, a: ClearValue, b: ClearValue) -> ClearValue:
        return self._value(slotwise(operator.add, a.cycle, b.cycle), self._equal(a, b))

    def sub(self, a: ClearValue, b: ClearValue) -> ClearValue:
        return self._value(slotwise(operator.sub, a.cycle, b.cycle), self._equal(a, b))

    def negate(self, a: ClearValue) -> ClearValue:
        return self._value(-a.cycle, a.level)

    def add_plain(self, a: ClearValue, p: Plain) -> ClearValue:
        return self._value(self._erring("encoded", self._with(operator.add, a, p)), a.level)

    def times(self, a: ClearValue, k: int) -> ClearValue:
        return self._value(a.cycle * k, a.level)

    def times_i(self, a: ClearValue) -> ClearValue:
        return self._value(a.cycle * 1j, a.level)

    def rotate(self, a: ClearValue, by: int) -> ClearValue:
        self._key(by, a.level)
        moved = self._arrays.rolled(a.cycle, by)
        return self._value(self._erring("switched", moved, a.level) if by % self.slots else moved, a.level)

    def rotate_many(self, a: ClearValue, by: Sequence[int]) -> list[ClearValue]:
        return [self.rotate(a, k) for k in by]

    def add_rotations(self, a: ClearValue, by: Sequence[int]) -> ClearValue:
        total = a.cycle
        for k in by:
            self._key(k, a.level)
            total = total + self._arrays.rolled(a.cycle, k)
        return self._value(self._erring("switched", total, a.level), a.level)

    def conjugate(self, a: ClearValue) -> ClearValue:
        if self.request is not None and not self.request.conjugation:
            raise MissingKeyError("conjugation is not among the plan's keys; make keys for this plan")
        return self._value(self._erring("switched", self._arrays.xp.conj(a.cycle), a.level), a.level)

    def drop(self, a: ClearValue, level: int) -> ClearValue:
        if not 0 <= level <= a.level:
            raise OutOfLevelsError(f"a value at level {a.level} cannot be dropped to level {level}")
        return self._value(a.cycle if level == a.level else self._erring("divided", a.cycle, a.level), level)

    # -- products ---------------------------------------------------------------------------------------------------

    def multiply(self, a: ClearValue, b: ClearValue) -> ClearValue:
        return self._product(slotwise(operator.mul, a.cycle, b.cycle), self._equal(a, b), "multiply")

    def multiply_sum(self, pairs: Sequence[tuple[ClearValue, ClearValue]]) -> ClearValue:
        level = self._equal(*(v for pair in pairs for v in pair))
        return self._product(self._arrays.dot([(a.cycle, b.cycle) for a, b in pairs]), level, "multiply_sum")

    def multiply_plain(self, a: ClearValue, p: Plain) -> ClearValue:
        return self._product(self._with(operator.mul, a, p), a.level, "multiply_plain", [(a, p)])

    def multiply_plain_sum(self, pairs: Sequence[tuple[ClearValue, Plain]]) -> ClearValue:
        level = self._equal(*(v for v, _ in pairs))
        total = self._arrays.dot([(v.cycle, self._plain(p)) for v, p in pairs])
        return self._product(total, level, "multiply_plain_sum", pairs)

    def linear(self, a: ClearValue, m: LinearMap) -> ClearValue:
        for k in m.rotations:
            self._key(k, a.level)
        level = self._spend(a.level, "linear")
        plains = [[self._plain(m.vector(giant, b)) for b in m.babies] for giant in m.giants]
        total = self._arrays.linear(a.slots, m.babies, m.giants, plains)
        if self.rounding is not None:  # every slot meets each diagonal with another slot of the value
            squares = self.rounding.vector(a.cycle).mean(axis=-1, keepdims=True)
            total = self.rounding.divided(self._arrays, total, a.level, squares * m.plaintexts)
        return self._value(total, level)

    def _with(self, op: Callable[[Any, Any], Any], a: ClearValue, p: Plain) -> Any:
        """A value and a plaintext, slot by slot."""
        return slotwise(op, a.cycle, self._plain(p)) if isinstance(p, Vector) else op(a.cycle, p)

    def _product(self, cycle: Any, level: int, what: str, pairs: Sequence[tuple[ClearValue, Plain]] = ()) -> ClearValue:
        """A product's result, one level down; ``pairs`` are its factors that met plaintexts."""
        below = self._spend(level, what)
        if self.rounding is None:
            return self._value(cycle, below)
        coded = 0.0
        for v, p in pairs:
            coded = coded + (self.rounding.vector if isinstance(p, Vector) else self.rounding.scalar)(v.slots)
        return self._value(self.rounding.divided(self._arrays, stretched(cycle, self.slots), level, coded), below)

    def _erring(self, how: str, cycle: Any, *level: int) -> Any:
        """Slots with the error of an operation, if operations err: then none repeats another."""
        if self.rounding is None:
            return cycle
        return getattr(self.rounding, how)(self._arrays, stretched(cycle, self.slots), *level)

    # -- bootstraps -------------------------------------------------------------------------------------------------

    def bootstrap(self, a: ClearValue, *, period: int, bound: float) -> ClearValue:
        return self._value(self._refreshed(a, period, bound), self._params.levels)

    def bootstrap_pair(
        self, a: ClearValue, b: ClearValue, *, period: int, bound: float
    ) -> tuple[ClearValue, ClearValue]:
        level = self._params.levels - self._params.pair_levels
        first, second = (self._value(self._refreshed(v, period, bound), level) for v in (a, b))
        return first, second

    def _refreshed(self, a: ClearValue, period: int, bound: float) -> Any:
        n = self.slots
        if period < 1 or n % period:
            raise EngineError(f"a bootstrap of period {period} on {n} slots; a period divides the slots")
        if self.strict:
            self._check_refresh(a.cycle, period, bound)
        real = cycled(a.cycle.real.astype(np.float64, order="C"), period)
        if self.rounding is not None:
            real = stretched(real, n)
        if self.noise is not None and self.rng is not None:
            cycles = by_cycle(real, period)
            reads = getattr(self.noise, "reads", True)
            given = self._arrays.get(cycles) if reads else np.broadcast_to(0.0, cycles.shape)
            cycles += self._arrays.put(self.noise(given, bound, self.rng))
        return real

    def _check_refresh(self, slots: Any, period: int, bound: float) -> None:
        """Refuse what a real bootstrap would destroy, in a cycle of slots."""
        xp, tolerance = self._arrays.xp, 1e-6 * max(bound, 1e-300)
        size = float(xp.abs(slots).max())
        most = max(bound, self._params.reach) if self._lenient else bound
        if not np.isfinite(size) or size > most * (1 + 1e-9):
            raise EngineError(
                f"a bootstrap planned for magnitudes up to {bound:g} met {size:g}; calibrate on wider data"
            )
        if bound > self._params.reach * (1 + 1e-9):
            reach = self._params.reach
            raise EngineError(f"magnitude {bound:g} lies outside the bootstrap's reach {reach:g}; plan again")
        if size > bound * (1 + 1e-9):
            self.exceeded, self.furthest = self.exceeded + 1, max(self.furthest, size / bound)
        if slots.dtype.kind == "c" and float(xp.abs(slots.imag).max()) > tolerance:
            raise EngineError("a bootstrap met a value that is not real")
        cycles = by_cycle(slots, min(period, slots.shape[-1]))
        if float(xp.abs(cycles - cycles[..., :1, :]).max()) > tolerance:
            raise EngineError(f"a bootstrap met a value that does not repeat with period {period}")

    # -- checks -----------------------------------------------------------------------------------------------------

    def _equal(self, *values: ClearValue) -> int:
        levels = {v.level for v in values}
        if len(levels) != 1:
            raise EngineError(f"operands at levels {sorted(levels)}; a plan drops them to one level first")
        return levels.pop()

    def _spend(self, level: int, what: str) -> int:
        if level < 1:
            raise OutOfLevelsError(f"{what} needs 1 level, has {level}; bootstrap before it")
        return level - 1

    def _key(self, by: int, level: int) -> None:
        if self._reach is not None:
            check_rotation(self._reach, by % self.slots, level)

    def _plain(self, p: Plain) -> Any:
        if not isinstance(p, Vector):
            return p
        held = self._encoded if p.keep else self._passing
        if p.key in held:
            return held[p.key]
        made = self._arrays.put(shortest(p.make()))
        if not p.keep:
            while len(held) >= PASSING:
                held.pop(next(iter(held)))
            held[p.key] = made
        elif made.nbytes <= self._room:
            self._room -= made.nbytes
            held[p.key] = made
        return made


def _read_array(data: bytes) -> NDArray[Any]:
    """An array as ``dump`` writes it. numpy's own reader also opens archives and evaluates the header as Python, and
    allocates what a header claims; this one reads the one form that is written, with exactly its bytes behind it."""
    found = _ARRAY.match(data)
    if found is None or int.from_bytes(found["length"], "little") != len(found["text"]):
        raise WireError("a value is truncated or altered; send it again")
    shape = tuple(int(n) for n in found["shape"].split(b",") if n.strip())
    dtype = np.dtype(found["dtype"].decode())
    if len(data) - found.end() != math.prod(shape) * dtype.itemsize:
        raise WireError("a value is truncated or altered; send it again")
    return np.frombuffer(data, dtype, offset=found.end()).reshape(shape).copy()


def open_clear(request: KeyRequest, keys: KeySource, **options: Any) -> ClearEngine:
    """The clear engine as an EngineFactory; it needs no keys, is lenient, and holds a plan to its rotations."""
    return ClearEngine(request.params, request=request, **{"lenient": True, **options})
