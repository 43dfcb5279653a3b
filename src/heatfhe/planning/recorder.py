# SPDX-License-Identifier: Apache-2.0
"""Records one program by running the approximations over tracers: every operation with period, magnitude, group."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from heatfhe.errors import ConfigError, ObliviousError
from heatfhe.planning.instructions import KINDS, Instruction
from heatfhe.planning.pack import LinearMap
from heatfhe.planning.plaintexts import Public, public
from heatfhe.planning.source import PlaintextSource
from heatfhe.planning.weights import Weight

GRID = 257  # samples of a solver's domain on which the magnitudes of everything it computes are found
FREE_TIMES = 16  # integers up to here multiply without a level


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """One recorded instruction. ``kind`` is the engine's method; ``modulus`` makes a rotation follow the position."""

    kind: str
    args: tuple[int, ...]
    results: tuple[int, ...]
    plains: tuple[Public, ...] = ()
    by: tuple[int, ...] = ()
    modulus: int = 0
    number: int = 0
    maps: tuple[LinearMap, ...] = ()
    group: int = -1
    name: str = ""
    operator: str = ""

    @property
    def row(self) -> Instruction:
        """What is known of its kind."""
        return KINDS[self.kind]


@dataclass(slots=True)
class Facts:
    """What is known of one value. ``samples`` (2, k) are magnitudes at the first and the last position of the context;
    ``grid`` names the sampled domain they are exact functions of, or -1 when they are bounds only. ``least`` is the
    smallest size that noise on it counts beside (``Recorder.weigh``), 0 where nobody has said so."""

    period: int
    parts: int
    samples: NDArray[np.float64]
    grid: int = -1
    complex: bool = False
    last: bool = False
    refreshable: bool = True
    input: str = ""
    least: float = 0.0

    def bounds(self) -> NDArray[np.float64]:
        """Largest magnitude at the first and at the last position."""
        return np.asarray(np.abs(self.samples).max(axis=1, keepdims=True))


class Traced:
    """A value of the program. Behaves as a number under + - *; refuses to be looked at."""

    __array_ufunc__ = None
    __slots__ = ("id", "recorder")

    def __init__(self, recorder: Recorder, id: int) -> None:
        self.recorder, self.id = recorder, id

    @property
    def facts(self) -> Facts:
        """Period, parts, magnitudes."""
        return self.recorder.facts[self.id]

    def __add__(self, other: Any) -> Traced:
        r = self.recorder
        if isinstance(other, Traced):
            if other.id == self.id:
                return r.emit("times", (self,), number=2)
            return r.emit("add", (self, other))
        if isinstance(other, (int, float)) and other == 0:
            return self
        return r.emit("add_plain", (self,), plains=(public(other),))

    __radd__ = __add__

    def __neg__(self) -> Traced:
        return self.recorder.emit("negate", (self,))

    def __sub__(self, other: Any) -> Traced:
        if isinstance(other, Traced):
            return self.recorder.emit("sub", (self, other))
        lower: Any = -other
        return self.__add__(lower)

    def __rsub__(self, other: Any) -> Traced:
        return (-self).__add__(other)

    def __mul__(self, other: Any) -> Traced:
        r = self.recorder
        if isinstance(other, Traced):
            return r.emit("multiply", (self, other))
        if isinstance(other, (int, float)) and float(other).is_integer() and 0 < abs(other) <= FREE_TIMES:
            k = int(other)
            return self if k == 1 else -self if k == -1 else r.emit("times", (self,), number=k)
        return r.emit("multiply_plain", (self,), plains=(public(other),))

    __rmul__ = __mul__

    def rotate(self, by: int, *, modulus: int = 0) -> Traced:
        """x[s + by]; with a modulus, x[s + by * (position mod modulus)]."""
        return self.recorder.emit("rotate", (self,), by=(by,), modulus=modulus)

    def conjugate(self) -> Traced:
        """Complex conjugate."""
        return self.recorder.emit("conjugate", (self,))

    def times_i(self) -> Traced:
        """Product with the imaginary unit."""
        return self.recorder.emit("times_i", (self,), complex=True)

    def region(self, name: str) -> Any:
        """What approximations open around a part that is one node: see heatfhe.approx.arithmetic.region."""
        return self.recorder.region(name)

    def _refuse(self, *_: object) -> NoReturn:
        raise ObliviousError("a solver looked at its data: the server cannot, and must not, see it")

    __bool__ = __float__ = __int__ = __index__ = __len__ = __iter__ = __abs__ = __array__ = _refuse
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __hash__ = _refuse
    __truediv__ = __rtruediv__ = __pow__ = __mod__ = __getitem__ = _refuse


@dataclass
class Recorder:
    """Collects the operations of one program.

    ``rows`` is the context (the longest row), ``source`` knows the layout of plaintext vectors. ``contract`` False
    leaves polynomials uncontracted, so that a bootstrap may fall inside one.
    """

    slots: int
    rows: int
    source: PlaintextSource | None = None
    contract: bool = True
    ops: list[Op] = field(default_factory=list)
    facts: list[Facts] = field(default_factory=list)
    products: dict[Weight, LinearMap] = field(default_factory=dict)
    outputs: dict[str, int] = field(default_factory=dict)
    _group: int = -1
    _groups: int = 0
    _grids: int = 0
    _scope: list[tuple[str, str]] = field(default_factory=lambda: [("", "linear")])

    # -- scopes -----------------------------------------------------------------------------------------------------

    @contextmanager
    def scope(self, name: str, operator: str) -> Iterator[None]:
        """Everything inside belongs to this place and operator."""
        self._scope.append((name, operator))
        yield
        self._scope.pop()

    @contextmanager
    def group(self) -> Iterator[None]:
        """Everything inside is one node: no bootstrap falls inside, and one value leaves it. Inner groups dissolve."""
        outer = self._group
        if outer < 0:
            self._group, self._groups = self._groups, self._groups + 1
        yield
        self._group = outer

    @contextmanager
    def region(self, _name: str) -> Iterator[None]:
        """A polynomial: a group when polynomials are contracted."""
        if not self.contract:
            yield
            return
        with self.group():
            yield

    # -- values -----------------------------------------------------------------------------------------------------

    def input(self, name: str, *, period: int, bound: float, parts: int = 1, refreshable: bool = True) -> Traced:
        """A value given to the program."""
        id = self._value(Facts(period, parts, np.full((2, 1), bound), input=name, refreshable=refreshable))
        self.ops.append(Op(kind="input", args=(), results=(id,), name=name, operator=self._scope[-1][1]))
        return Traced(self, id)

    def output(self, name: str, value: Traced) -> None:
        """A value the program gives back."""
        self.outputs[name] = value.id

    def assume(self, value: Traced, bound: float, *, rows: float = 0.0) -> Traced:
        """Say that |value| <= bound * (positions so far)^rows."""
        value.facts.samples = np.array([[bound], [bound * self.rows**rows]])
        value.facts.grid = -1
        return value

    def clip(self, value: Traced, bound: float, *, rows: float = 0.0) -> Traced:
        """As assume, where that is smaller than what is known."""
        known = value.facts.bounds()
        limit = np.array([[bound], [bound * self.rows**rows]])
        if (limit < known).any():
            value.facts.samples, value.facts.grid = np.minimum(known, limit), -1
        return value

    def clip_since(self, mark: int, bound: float, *, period: int) -> None:
        """Clip every value recorded since ``mark`` that has at least this period."""
        for id in range(mark, len(self.facts)):
            if self.facts[id].period >= period:
                self.clip(Traced(self, id), bound)

    def domain(self, value: Traced, lo: float, hi: float, *, rows: float = 0.0) -> Traced:
        """Say that value lies in [lo, hi] * (positions so far)^rows; what follows is sampled over that domain."""
        grid = np.linspace(lo, hi, GRID) if lo <= 0 else np.geomspace(lo, hi, GRID)
        value.facts.samples = np.stack([grid, grid * self.rows**rows])
        value.facts.grid, self._grids = self._grids, self._grids + 1
        return value

    def last(self, value: Traced) -> Traced:
        """Mark the last result of a solver."""
        value.facts.last = True
        return value

    def weigh(self, value: Traced, least: float = 0.0, *, part: float = 1.0) -> Traced:
        """Say that this part of noise on value counts beside its size, or beside ``least`` where that is larger.

        What value is computed from over the same sampled domain learns what noise on it counts beside: one over the
        largest relative change of value that a unit there makes. An estimate from domains and counts, to first order.
        """
        facts = value.facts
        size = np.maximum(np.abs(facts.samples), least) if facts.grid >= 0 else np.full((2, 1), least)
        slopes: dict[int, NDArray[np.float64]] = {value.id: part / size}
        for op in reversed(self.ops):
            slope = slopes.pop(op.results[0], None)
            if slope is None:
                continue
            made = self.facts[op.results[0]]
            least = 1.0 / max(float(np.abs(slope).max()), 1e-300)
            made.least = min(least, made.least) if made.least else least
            if made.grid >= 0:
                for a, along in zip(op.args, self._slopes(op)):
                    if self.facts[a].grid == made.grid:
                        slopes[a] = slopes.get(a, 0.0) + slope * along
            elif op.kind == "multiply" and op.args[0] == op.args[1]:  # 2 y / max(least, y^2) is 1 / sqrt(least) or less
                slopes[op.args[0]] = np.full((2, 1), least**-0.5)
            if not slopes:
                break
        return value

    def weigh_factors(self, value: Traced, part: NDArray[np.float64]) -> None:
        """Say what noise counts beside on the values that an iteration n <- n f made ``value`` of, for each sample.

        Noise of x on such an n multiplies value by 1 + x / n, whatever its size: nothing is left to first order. They
        are the first factors of products, back to the first that is none: a seed, which a denominator may share.
        """
        made = {op.results[0]: op for op in self.ops}
        id = value.id
        while (op := made[id]).kind == "multiply" and self.facts[id].grid == value.facts.grid >= 0:
            facts = self.facts[id]
            facts.least = max(facts.least, float((np.abs(facts.samples) / part).min()))
            id = op.args[0]

    def root(self, square: Traced) -> Traced:
        """The value whose square was recorded last."""
        op = self.ops[-1]
        if op.results != (square.id,) or op.kind != "multiply" or op.args[0] != op.args[1]:
            raise ConfigError(f"{op.name}: {op.kind} is not the square of a value")
        return Traced(self, op.args[0])

    def _slopes(self, op: Op) -> list[NDArray[np.float64]]:
        """The derivatives of a sampled result in each of its arguments, by a step along the imaginary axis."""
        v, p = [self.facts[a].samples for a in op.args], self._plains(op.plains)
        step = 1e-100
        moved: Iterator[list[Any]] = ([x + 1j * step * (i == k) for i, x in enumerate(v)] for k in range(len(v)))
        return [np.asarray(op.row.magnitude(m, p, op.number, True)).imag / step for m in moved]

    def _value(self, facts: Facts) -> int:
        self.facts.append(facts)
        return len(self.facts) - 1

    # -- operations -------------------------------------------------------------------------------------------------

    def emit(
        self,
        kind: str,
        args: Sequence[Traced],
        *,
        plains: tuple[Public, ...] = (),
        by: tuple[int, ...] = (),
        complex: bool | None = None,
        maps: tuple[LinearMap, ...] = (),
        modulus: int = 0,
        number: int = 0,
    ) -> Traced:
        """Record one instruction with one result."""
        facts = self._derive(kind, [a.facts for a in args], plains, number)
        if complex is not None:
            facts.complex = complex
        id = self._value(facts)
        name, operator = self._scope[-1]
        by = tuple(k % self.slots if not modulus else k for k in by)
        ids = tuple(a.id for a in args)
        self.ops.append(
            Op(kind=kind, args=ids, results=(id,), plains=plains, by=by, modulus=modulus, number=number,
               maps=maps, group=self._group, name=name, operator=operator)
        )  # fmt: skip
        return Traced(self, id)

    def rotate_many(self, value: Traced, by: Sequence[int]) -> list[Traced]:
        """Several rotations of one value, hoisted; a rotation by zero is the value itself."""
        wanted = [k % self.slots for k in by]
        moved = tuple(dict.fromkeys(k for k in wanted if k))
        if not moved:
            return [value for _ in wanted]
        ids = tuple(self._value(replace(value.facts, last=False, input="", least=0.0)) for _ in moved)
        name, operator = self._scope[-1]
        place: dict[str, Any] = {"group": self._group, "name": name, "operator": operator}
        self.ops.append(Op(kind="rotate_many", args=(value.id,), results=ids, by=moved, **place))
        made = dict(zip(moved, ids))
        return [Traced(self, made[k]) if k else value for k in wanted]

    def plain_sum(self, pairs: Sequence[tuple[Traced, Public]]) -> Traced:
        """Sum of plaintext products with one rescale."""
        if len(pairs) == 1:
            return self.emit("multiply_plain", [pairs[0][0]], plains=(pairs[0][1],))
        return self.emit("multiply_plain_sum", [v for v, _ in pairs], plains=tuple(p for _, p in pairs))

    def product_sum(self, pairs: Sequence[tuple[Traced, Traced]]) -> Traced:
        """Sum of products with one relinearisation."""
        if len(pairs) == 1:
            return pairs[0][0] * pairs[0][1]
        return self.emit("multiply_sum", [v for pair in pairs for v in pair])

    def linear(self, value: Traced, *maps: LinearMap, period: int) -> Traced:
        """A plaintext linear map; several make a value of as many ciphertexts."""
        self.products.update({m.weight: m for m in maps})
        out = self.emit("linear", (value,), maps=maps, complex=maps[0].complex)
        out.facts.period, out.facts.parts = period, len(maps)
        return out

    def join(self, *values: Traced) -> Traced:
        """One value held by several ciphertexts."""
        if len(values) == 1:
            return values[0]
        out = self.emit("join", values)
        out.facts.parts = len(values)
        return out

    def select(self, value: Traced, part: int) -> Traced:
        """One ciphertext of a value that several hold."""
        if value.facts.parts == 1:
            return value
        out = self.emit("select", (value,), number=part)
        out.facts.parts = 1
        return out

    def sum_over(self, value: Traced, stride: int, terms: int, *, period: int | None = None) -> Traced:
        """Rotate-and-sum tree of ``terms`` (a power of two) slots at this stride, as one node."""
        with self.group():
            for k in range(terms.bit_length() - 1):
                value = value + value.rotate(stride << k)
        if period is not None and terms > 1:
            value.facts.period = period
        return value

    def _derive(self, kind: str, args: list[Facts], plains: tuple[Public, ...], number: int) -> Facts:
        periods, sizes = [f.period for f in args], {f.parts for f in args}
        for p in plains:
            if p.vector is not None and self.source is not None:
                periods.append(p.vector.period(self.source))
                sizes.add(p.vector.parts(self.source))
        if len(sizes - {1}) > 1:
            raise ConfigError(f"{self._scope[-1][0]}: operands of {sorted(sizes)} ciphertexts do not meet")
        samples, grid = self._samples(kind, args, plains, number)
        return Facts(max(periods), max(sizes), samples, grid, complex=any(f.complex for f in args))

    def _samples(
        self, kind: str, args: list[Facts], plains: tuple[Public, ...], number: int
    ) -> tuple[NDArray[np.float64], int]:
        row, grids = KINDS[kind], {f.grid for f in args}
        grid = grids.pop() if len(grids) == 1 and row.sampled else -1
        v = [f.samples if grid >= 0 else f.bounds() for f in args]
        p = self._plains(plains)
        if grid < 0:
            p = [np.abs(q) for q in p]
        return np.asarray(row.magnitude(v, p, number, grid >= 0)), grid

    def _plains(self, plains: tuple[Public, ...]) -> list[NDArray[np.float64]]:
        ends = np.array([1.0, float(self.rows)])  # row lengths; a vector's entries count as one
        return [np.asarray(q.value(ends)).reshape(-1, 1) for q in plains]
