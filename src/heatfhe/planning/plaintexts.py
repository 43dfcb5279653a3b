# SPDX-License-Identifier: Apache-2.0
"""Public plaintexts as values: a number, a power of the row length and at most one slot vector, multiplied.

A plan holds these values and no weights; a source (``planning.source``) makes the numbers. In a plan file each is one
key, such as ``0.5*causal*rows^-0.5``: ``Public.key`` writes it and ``Public.parse`` alone reads it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, Union

import numpy as np
from numpy.typing import NDArray

from heatfhe.errors import ConfigError
from heatfhe.planning.pack import power_of_two
from heatfhe.planning.weights import Biased, Embedding, Weight, parse_weight, placed
from heatfhe.stages import turns

if TYPE_CHECKING:
    from heatfhe.planning.source import PlaintextSource

Number: TypeAlias = "int | float"
STEEPEST = 64.0  # power of the row length


class _Slots:
    """What the vectors share. Each has a ``key``, its name in plan files, and ``slots``, as they are laid out."""

    __slots__ = ()
    moves: ClassVar[bool] = False  # whether it depends on the position

    def period(self, s: PlaintextSource) -> int:
        """Distinct slots."""
        return s.packing.n

    def parts(self, s: PlaintextSource) -> int:
        """Ciphertexts it differs in."""
        return 1


class Mask(_Slots, Enum):
    """Ones where something is true of a slot, zeros elsewhere."""

    APPEND_K = "append.k"  # where the cache keeps this position's key
    APPEND_V = "append.v"  # and its value
    CAUSAL = "causal"  # a cached position up to this one, in a head that is none of the padding
    FIRST = "first"  # copy 0 of the heads' layout
    FIRST_HIDDEN = "first.hidden"  # copy 0 of the hidden layout
    IDLE = "idle"  # a head that is padding
    LOW = "low"  # among the first ``width`` slots
    WORDS = "words"  # a word, not padding

    @property
    def key(self) -> str:
        return str(self.value)

    @property
    def moves(self) -> bool:  # type: ignore[override]
        return self in (Mask.APPEND_K, Mask.APPEND_V, Mask.CAUSAL)

    def period(self, s: PlaintextSource) -> int:
        p = s.packing
        return {Mask.CAUSAL: p.m * p.stride, Mask.IDLE: p.Hp, Mask.WORDS: p.V}.get(self, p.n)

    def parts(self, s: PlaintextSource) -> int:
        p = s.packing
        return {Mask.APPEND_K: p.m, Mask.APPEND_V: p.m, Mask.WORDS: p.vocabulary_parts}.get(self, 1)

    def slots(self, s: PlaintextSource, position: int, part: int) -> NDArray[Any]:
        p, heads, slot = s.packing, s.circuit.shape.heads, np.arange(s.packing.n)
        e, c, h = p.coordinates
        where: dict[Mask, Callable[[], NDArray[Any]]] = {
            Mask.APPEND_K: lambda: (e % p.m == position // p.t) & (c == position % p.t),
            Mask.APPEND_V: lambda: ((e + part) % p.m == position // p.t) & (c == position % p.t),
            Mask.CAUSAL: lambda: (e % p.m * p.t + c <= position) & (h < heads),
            Mask.FIRST: lambda: c == 0,
            Mask.FIRST_HIDDEN: lambda: slot % p.stride // p.hF == 0,
            Mask.IDLE: lambda: h >= heads,
            Mask.LOW: lambda: slot < s.circuit.shape.width,
            Mask.WORDS: lambda: p.vocabulary(part) >= 0,
        }
        return np.asarray(where[self](), dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Turn(_Slots):
    """A mask of the heads' layout times the cosine or the signed sine of rotary positions."""

    moves: ClassVar[bool] = True
    mask: Mask
    base: float
    sine: bool

    @property
    def key(self) -> str:
        return f"turn:{'sin' if self.sine else 'cos'}:{self.base!r}:{self.mask.key}"

    def parts(self, s: PlaintextSource) -> int:
        return self.mask.parts(s)

    def slots(self, s: PlaintextSource, position: int, part: int) -> NDArray[Any]:
        numbers = turns(self.base, s.circuit.shape.head_width, [position])[self.sine][0]
        ahead = part if self.mask is Mask.APPEND_K else 0  # a ciphertext of keys is moved by as many entries
        return self.mask.slots(s, position, part) * placed(numbers, s.packing.inner(ahead))


@dataclass(frozen=True, slots=True)
class Skew(_Slots):
    """Ones in one region of the MLP's variant B."""

    region: int

    @property
    def key(self) -> str:
        return f"skew.{self.region}"

    def slots(self, s: PlaintextSource, position: int, part: int) -> NDArray[Any]:
        return np.asarray(np.arange(s.packing.n) // s.packing.F == self.region, dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Position(_Slots):
    """The position's row of the embedding."""

    moves: ClassVar[bool] = True
    key: ClassVar[str] = "position"

    def period(self, s: PlaintextSource) -> int:
        return s.packing.D

    def slots(self, s: PlaintextSource, position: int, part: int) -> NDArray[Any]:
        rows = s.circuit.folded.position
        if rows is None:
            raise LookupError("a model without positions")
        return placed(rows[position], s.packing.residual)


@dataclass(frozen=True, slots=True)
class Bias(_Slots):
    """What is added after a linear map."""

    weight: Biased

    @property
    def key(self) -> str:
        return f"bias:{self.weight.key}"

    def period(self, s: PlaintextSource) -> int:
        return self.weight.period(s)

    def parts(self, s: PlaintextSource) -> int:
        return self.weight.parts(s)

    def slots(self, s: PlaintextSource, position: int, part: int) -> NDArray[Any]:
        return self.weight.bias(s, part)


class Rows(_Slots, Enum):
    """Vectors over the rows of many tokens, each with a length of its own; the position is that of the last one.

    The values they meet have one ciphertext per block of queries, or per block and ``span`` blocks of keys. Tokens past
    the last, which fill its block, stand at its position and see what it sees: they are copies of it at every stage.
    """

    CAUSAL = "rows.causal"  # scores that count: keys up to the query, in a head that is none of the padding
    EVERY = "rows.every"  # ones
    IDLE = "rows.idle"  # a head that is padding
    POSITIONS = "rows.positions"  # the rows of the embedding
    WHOLE = "rows.whole"  # scores that count where every query sees all keys, in a head that is none of the padding

    @property
    def key(self) -> str:
        return str(self.value)

    @property
    def moves(self) -> bool:  # type: ignore[override]
        return self not in (Rows.IDLE, Rows.WHOLE)

    def period(self, s: PlaintextSource) -> int:
        p = s.packing
        return {Rows.EVERY: p.t, Rows.IDLE: p.stride}.get(self, p.n)

    def places(self, s: PlaintextSource, position: int, part: int) -> NDArray[np.int64]:
        """The position every slot's query stands at."""
        p = s.packing.tokens
        if self is Rows.WHOLE:
            return np.full(p.n, p.context - 1)
        block = p.score(part)[0] if self is Rows.CAUSAL else part
        return np.minimum(block * p.t + p.coordinates[1], position)

    def slots(self, s: PlaintextSource, position: int, part: int) -> NDArray[Any]:
        p, heads = s.packing.tokens, s.circuit.shape.heads
        e, c, h = p.coordinates
        if self in (Rows.CAUSAL, Rows.WHOLE):
            group = p.score(part)[1] if self is Rows.CAUSAL else part % p.groups
            keys = (group * p.span + e // p.t) * p.t + (c - e) % p.t
            return np.asarray((h < heads) & (keys <= self.places(s, position, part)), dtype=np.float64)
        if self is not Rows.POSITIONS:
            return np.asarray(h >= heads, dtype=np.float64) if self is Rows.IDLE else np.ones(p.n)
        rows = s.circuit.folded.position
        if rows is None:
            raise LookupError("a model without positions")
        return p.pack_tokens(rows[self.places(s, position, part)[: p.t]])[0][: p.n]


@dataclass(frozen=True, slots=True)
class Shift(_Slots):
    """Top index ``row``, and the tokens that find another of their own block at slot + ``by``."""

    row: int
    by: int

    @property
    def key(self) -> str:
        return f"shift:{self.row}:{self.by}"

    def slots(self, s: PlaintextSource, position: int, part: int) -> NDArray[Any]:
        e, c, _ = s.packing.tokens.coordinates
        there = c + self.by
        return np.asarray((e == self.row) & (there >= 0) & (there < s.packing.t), dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Order(_Slots):
    """Token ``token`` of head ``head`` in the cache's order, before the rotation that brings it there."""

    token: int
    head: int

    @property
    def key(self) -> str:
        return f"order:{self.token}:{self.head}"

    def slots(self, s: PlaintextSource, position: int, part: int) -> NDArray[Any]:
        p = s.packing
        _, c, h = p.coordinates
        return np.roll(((c == self.token) & (h == self.head)).astype(np.float64), -self.token * (p.Hp - 1))


@dataclass(frozen=True, slots=True)
class Store(_Slots):
    """Where the cache keeps the tokens of a block, up to the position: residue class ``row`` of its ciphertext."""

    moves: ClassVar[bool] = True
    block: int
    row: int

    @property
    def key(self) -> str:
        return f"store:{self.block}:{self.row}"

    def slots(self, s: PlaintextSource, position: int, part: int) -> NDArray[Any]:
        p = s.packing
        e, c, _ = p.coordinates
        return np.asarray((e % p.m == self.row) & (self.block * p.t + c <= position), dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Share(_Slots):
    """The slots of one block of tokens where numbers of ``blocks`` blocks share a ciphertext: stretches of ``stretch``
    slots in turn, the next power of two of them a round; the last block has what is left of a round."""

    block: int
    blocks: int
    stretch: int

    def __post_init__(self) -> None:
        if not (0 <= self.block < self.blocks and self.stretch > 0):
            raise ConfigError(f"{self.key}: a share is that of one of its blocks, in whole slots")

    @property
    def key(self) -> str:
        return f"share:{self.block}:{self.blocks}:{self.stretch}"

    @property
    def turns(self) -> int:
        """Stretches of a round."""
        return power_of_two(self.blocks)

    @property
    def own(self) -> int:
        """How many of them are this block's."""
        return self.turns - self.block if self.block == self.blocks - 1 else 1

    def period(self, s: PlaintextSource) -> int:
        return self.turns * self.stretch

    def slots(self, s: PlaintextSource, position: int, part: int) -> NDArray[Any]:
        turn = np.arange(s.packing.n) // self.stretch % self.turns
        return np.asarray(np.minimum(turn, self.blocks - 1) == self.block, dtype=np.float64)


_NUMBERED: Mapping[str, type[Shift] | type[Order] | type[Store] | type[Share]] = {
    "shift": Shift, "order": Order, "store": Store, "share": Share,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Diagonal(_Slots):
    """One plaintext of a linear map, used by itself where several maps share the rotations of their input."""

    weight: Weight
    giant: int
    baby: int

    @property
    def key(self) -> str:
        return f"map:{self.weight.key}:{self.giant}:{self.baby}"

    def slots(self, s: PlaintextSource, position: int, part: int) -> NDArray[Any]:
        return s.diagonal(self.weight, self.giant, self.baby)


Factor = Union[Mask, Turn, Skew, Position, Bias, Diagonal, Rows, Shift, Order, Store, Share]


@dataclass(frozen=True, slots=True)
class Public:
    """coefficient * (row length)^rows * vector.

    Supports * and / against numbers and its own kind: approximations fold their constants into it as into a float.
    """

    coefficient: float = 1.0
    rows: float = 0.0
    vector: Factor | None = None

    __array_ufunc__ = None

    @classmethod
    def of(cls, vector: Factor) -> Public:
        """A vector as it is."""
        return cls(vector=vector)

    @property
    def moves(self) -> bool:
        """Whether it depends on the position."""
        return bool(self.rows) or (self.vector is not None and self.vector.moves)

    def power(self, exponent: float) -> Public:
        """It raised to a power: a positive number and a row length, no vector."""
        if self.vector is not None:
            raise ConfigError(f"{self.key}: a slot vector has no powers")
        return Public(self.coefficient**exponent, self.rows * exponent)

    def __mul__(self, other: Public | Number) -> Public:
        if not isinstance(other, Public):
            return Public(self.coefficient * float(other), self.rows, self.vector)
        if self.vector is not None and other.vector is not None:
            raise ConfigError(f"{self.key} and {other.key}: a plaintext holds one slot vector")
        vector = other.vector if self.vector is None else self.vector
        return Public(self.coefficient * other.coefficient, self.rows + other.rows, vector)

    __rmul__ = __mul__

    def __neg__(self) -> Public:
        return Public(-self.coefficient, self.rows, self.vector)

    def inverse(self) -> Public:
        """One over it."""
        return Public(1.0 / self.coefficient) * Public(rows=self.rows, vector=self.vector).power(-1.0)

    def __truediv__(self, other: Public | Number) -> Public:
        return self * (other.inverse() if isinstance(other, Public) else 1.0 / float(other))

    def __rtruediv__(self, other: Number) -> Public:
        return self.inverse() * other

    def value(self, rows: Any, vector: Any = 1.0) -> Any:
        """What it stands for, given the row length and its vector."""
        out = self.coefficient * vector if self.vector is not None else self.coefficient
        if not self.rows:
            return out
        return out * (rows if self.rows == 1 else np.power(rows, self.rows))

    @property
    def key(self) -> str:
        """The one text form; parse is its inverse."""
        short = f"{self.rows:g}"
        length = "rows" if self.rows == 1 else f"rows^{short if float(short) == self.rows else repr(self.rows)}"
        names = ([length] if self.rows else []) + ([] if self.vector is None else [self.vector.key])
        return "*".join([repr(self.coefficient), *sorted(names)])

    @classmethod
    def parse(cls, key: str) -> Public:
        """Inverse of key; refuses everything that no value is written as."""
        try:
            number, *names = key.split("*")
            out = cls(float(number))
            for name in names:
                base, _, power = name.partition("^")
                out = out * (cls(rows=float(power or 1)) if base == "rows" else cls.of(_factor(name)))
        except (ValueError, ConfigError) as err:
            raise ConfigError(f"{key[:64]!r} is not a plaintext's key") from err
        if not (math.isfinite(out.coefficient) and abs(out.rows) <= STEEPEST and out.key == key):
            raise ConfigError(f"{key[:64]!r} is not a plaintext's key")
        return out


def public(value: Public | Number) -> Public:
    """A number as a Public."""
    return value if isinstance(value, Public) else Public(float(value))


def _factor(name: str) -> Factor:
    """The vector of a name in a plan file."""
    if name == Position.key:
        return Position()
    kind, colon, rest = name.partition(":")
    if not colon:
        kind, _, rest = name.partition(".")
        return Skew(int(rest)) if kind == "skew" else Rows(name) if kind == "rows" else Mask(name)
    if kind in _NUMBERED:
        made, numbers = _NUMBERED[kind], [int(number) for number in rest.split(":")]
        if len(numbers) != len(fields(made)):
            raise ValueError(name)
        return made(*numbers)
    if kind == "map":
        weight, giant, baby = rest.split(":")
        return Diagonal(parse_weight(weight), int(giant), int(baby))
    if kind == "turn":
        part, base, mask = rest.split(":")
        return Turn(Mask(mask), float(base), part == "sin")
    weight_of_bias = parse_weight(rest)
    if kind != "bias" or isinstance(weight_of_bias, Embedding):
        raise ValueError(name)
    return Bias(weight_of_bias)
