# SPDX-License-Identifier: Apache-2.0
"""Which matrix a linear map multiplies by: values that know their key in a plan file, their layout and their numbers.

A source (``planning.source``) holds the circuit, the packing and the scales they are made from. A linear map's terms
are (matrix, layout in, layout out), every constant folded in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Union

import numpy as np
from numpy.typing import NDArray

from heatfhe.errors import ConfigError
from heatfhe.stages import Attention

if TYPE_CHECKING:
    from heatfhe.planning.pack import LinearMap
    from heatfhe.planning.source import PlaintextSource

Real = NDArray[np.float64]
Third = Literal["q", "k", "v"]
Term = tuple[Real, NDArray[np.int64], NDArray[np.int64]]

MOST_PARTS = 1 << 16  # ciphertexts of one value


class _Weight:
    """What the weights share. Each has a ``key``, its name in plan files, and ``terms``, two where two matrices make a
    map complex; all but the embedding have a ``bias``, laid out for one ciphertext."""

    __slots__ = ()

    def period(self, s: PlaintextSource) -> int:
        """Distinct slots of the bias."""
        return s.packing.n

    def parts(self, s: PlaintextSource) -> int:
        """Ciphertexts the bias differs in."""
        return 1


@dataclass(frozen=True, slots=True)
class Projection(_Weight):
    """A linear stage that makes the queries, keys or values of an attention, or its part where all are joined."""

    stage: str
    third: Third

    @property
    def key(self) -> str:
        return f"{self.stage}/{self.third}"

    def terms(self, s: PlaintextSource, m: LinearMap) -> tuple[Term, ...]:
        scale = self._scale(s) / s.carried(self.stage)
        weight = self._own(s, s.circuit.folded.linears[self.stage].weight)
        return ((weight * scale, s.packing.residual, s.packing.heads),)

    def bias(self, s: PlaintextSource, part: int) -> Real:
        return placed(self._own(s, s.circuit.folded.linears[self.stage].bias) * self._scale(s), s.packing.heads)

    def _scale(self, s: PlaintextSource) -> float:
        return s.query_scale(self.stage) if self.third == "q" else 1.0

    def _own(self, s: PlaintextSource, columns: Real) -> Real:
        if not isinstance(s.attention(self.stage).reads, str):
            return columns
        d = s.circuit.shape.width
        start = "qkv".index(self.third) * d
        return columns[..., start : start + d]


@dataclass(frozen=True, slots=True)
class Dense(_Weight):
    """A linear stage: a way into the MLP, the way back, or an attention's output projection.

    ``part`` is the ciphertext of a hidden vector that several hold; ``periodic`` the MLP's variant B.
    """

    stage: str
    part: int | None = None
    periodic: bool = False

    @property
    def key(self) -> str:
        return f"{self.stage}~" if self.periodic else _numbered(self.stage, self.part)

    def terms(self, s: PlaintextSource, m: LinearMap) -> tuple[Term, ...]:
        p, weight = s.packing, s.circuit.folded.linears[self.stage].weight
        if self.stage in s.divisors:
            divisor = s.divisors[self.stage] * s.carried(self.stage)
            if not self.periodic:
                return ((weight * (1.0 / divisor), p.residual, p.hidden(self.part or 0)),)
            mlp, offsets = s.mlp(m.join), (0, p.D // 2) if m.join else (0,)
            return tuple((weight / divisor, mlp.skewed(k), mlp.hidden) for k in offsets)
        value = s.linear(self.stage).reads
        scaled = weight * (s.scales.residual / s.scales.values[value])
        if isinstance(s.made[value], Attention):
            return ((scaled, p.heads, p.residual),)
        if not self.periodic:
            return ((scaled, p.hidden(self.part or 0), p.residual),)
        mlp = s.mlp(m.half > 0)
        return ((scaled, mlp.hidden, mlp.spread_out),)

    def bias(self, s: PlaintextSource, part: int) -> Real:
        bias, p = s.circuit.folded.linears[self.stage].bias, s.packing
        if self.stage not in s.divisors:
            return placed(bias * s.scales.residual, p.residual)
        layout = s.mlp(False).hidden if self.periodic else p.hidden(part)
        return placed(bias / s.divisors[self.stage], layout)

    def period(self, s: PlaintextSource) -> int:
        if self.stage not in s.divisors:
            return s.packing.D
        return s.packing.F if self.periodic else s.packing.n

    def parts(self, s: PlaintextSource) -> int:
        return s.packing.hidden_parts if self.stage in s.divisors and not self.periodic else 1


@dataclass(frozen=True, slots=True)
class Unembedding(_Weight):
    """The head; ``centred`` with the mean over the words taken out, and scaled for the argmax. A bias has no part."""

    centred: bool
    part: int | None = None

    @property
    def key(self) -> str:
        return _numbered("centred" if self.centred else "head", self.part)

    def terms(self, s: PlaintextSource, m: LinearMap) -> tuple[Term, ...]:
        head = s.circuit.folded.head.weight / s.carried_head
        if self.centred:
            head = (head - head.mean(axis=1, keepdims=True)) * s.scales.logits
        return tuple((head, s.packing.residual, s.packing.vocabulary(k)) for k in _both(self.part, m))

    def bias(self, s: PlaintextSource, part: int) -> Real:
        bias = s.circuit.folded.head.bias
        if self.centred:
            bias = (bias - bias.mean()) * s.scales.logits
        return placed(bias, s.packing.vocabulary(part))

    def period(self, s: PlaintextSource) -> int:
        return s.packing.V

    def parts(self, s: PlaintextSource) -> int:
        return s.packing.vocabulary_parts


@dataclass(frozen=True, slots=True)
class Embedding(_Weight):
    """The rows of the embedding that one ciphertext of a one-hot row chooses from."""

    part: int

    @property
    def key(self) -> str:
        return _numbered("embedding", self.part)

    def terms(self, s: PlaintextSource, m: LinearMap) -> tuple[Term, ...]:
        token, p = s.circuit.folded.token, s.packing
        return tuple((token, p.vocabulary(k), p.residual) for k in _both(self.part, m))


@dataclass(frozen=True, slots=True)
class Tokens(_Weight):
    """A weight between layouts of many tokens, halved, since real and imaginary part hold two blocks of them.

    With a ``partner`` both are made of one real block, as real and imaginary part.
    """

    weight: Projection | Dense | Unembedding
    partner: Projection | None = None

    @property
    def key(self) -> str:
        return f"@{self.weight.key}" + (f"&{self.partner.key}" if self.partner else "")

    def terms(self, s: PlaintextSource, m: LinearMap) -> tuple[Term, ...]:
        if self.partner is not None:
            return self.weight.terms(s.tokens, m) + self.partner.terms(s.tokens, m)
        return tuple((0.5 * matrix, given, made) for matrix, given, made in self.weight.terms(s.tokens, m))

    def bias(self, s: PlaintextSource, part: int) -> NDArray[Any]:
        whole = self.weight.bias(s.tokens, part % self.weight.parts(s.tokens))
        return whole if self.partner is None else whole + 1j * self.partner.bias(s.tokens, 0)


Biased = Union[Projection, Dense, Unembedding, Tokens]
Weight = Union[Projection, Dense, Unembedding, Embedding, Tokens]


def parse_weight(key: str) -> Weight:
    """The weight a key of a plan file stands for: the inverse of its ``key``."""
    if key.startswith("@"):
        parsed = [parse_weight(one) for one in key[1:].split("&") if not one.startswith("@")]
        kinds = {1: (Projection, Dense, Unembedding), 2: (Projection,)}.get(key.count("&") + 1, ())
        centred = any(isinstance(w, Unembedding) and w.centred for w in parsed)
        if len(parsed) != key.count("&") + 1 or centred or not all(isinstance(w, kinds) for w in parsed):
            raise ConfigError(f"{key[:64]!r} is not a linear map's key")
        return Tokens(*parsed)  # type: ignore[arg-type]
    stage, slash, third = key.partition("/")
    if slash:
        if third not in ("q", "k", "v"):
            raise ConfigError(f"{key[:64]!r} is not a linear map's key")
        return Projection(stage, third)  # type: ignore[arg-type]
    if key.endswith("~"):
        return Dense(key[:-1], periodic=True)
    stem, _, tail = key.rpartition(".")
    name, part = (stem, int(tail)) if tail.isdecimal() and len(tail) < 6 else (key, None)
    if part is not None and part >= MOST_PARTS:
        raise ConfigError(f"{key[:64]!r} names a ciphertext past the first {MOST_PARTS}")
    if name in ("head", "centred"):
        return Unembedding(name == "centred", part)
    return Embedding(part) if name == "embedding" and part is not None else Dense(name, part)


def placed(row: Real, index: NDArray[np.int64]) -> Real:
    """A vector in a layout, zero in padding."""
    return np.asarray(np.append(row, 0.0)[index])


def _numbered(name: str, part: int | None) -> str:
    return name if part is None else f"{name}.{part}"


def _both(part: int | None, m: LinearMap) -> tuple[int, ...]:
    """The parts a map covers: its own, and the next where real and imaginary part hold two."""
    first = part or 0
    return (first, first + 1) if m.pair or m.join else (first,)
