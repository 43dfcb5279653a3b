# SPDX-License-Identifier: Apache-2.0
"""Makes the numbers of plaintext values and linear maps from the circuit on demand: a plan stores no weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property, lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heatfhe.circuit import Circuit
from heatfhe.ckks import SlotMatrix, diagonal
from heatfhe.errors import ConfigError
from heatfhe.planning.blocks import Rows
from heatfhe.planning.pack import LinearMap, Packing, PeriodicMlp, Vector
from heatfhe.planning.plaintexts import Factor, Public
from heatfhe.planning.scales import scales
from heatfhe.planning.vectors import Front
from heatfhe.planning.weights import Biased, Tokens, Unembedding, Weight
from heatfhe.stages import Activation, Attention, Gate, Head, Linear, Norm, of, readers, writers


class PlaintextSource:
    """Every number and slot vector a plan's steps name, computed from the circuit's folded weights when asked."""

    def __init__(
        self,
        circuit: Circuit,
        packing: Packing,
        products: Mapping[Weight, LinearMap],
        reach: float,
        *,
        tight: bool = False,
        loud: float | None = None,
    ) -> None:
        self.circuit, self.packing, self.products = circuit, packing, products
        self.reach, self.tight, self.loud = reach, tight, loud
        self.scales, self.made = scales(circuit, reach, tight=tight, loud=loud), writers(circuit.stages)
        self._between = lru_cache(maxsize=8)(lambda m: m.between(m.weight.terms(self, m)))
        self._maps: dict[Weight, LinearMap] = {}

    def plain(self, p: Public, position: int, part: int = 0) -> float | Vector:
        """The number a plaintext is at a position, or its vector, made when it is needed."""
        return float(p.value(float(position + 1))) if p.vector is None else self._vector(p, p.vector, position, part)

    def front(self, port: str, part: int) -> Vector | None:
        """What the public prefix, if there is one, leaves in one ciphertext of a cache: see programs.attention."""
        front = Front(port)
        return self._vector(Public.of(front), front, 0, part) if self.circuit.prefix else None

    def linear_map(self, weight: Weight) -> LinearMap:
        """A linear map with its plaintexts."""
        if weight not in self._maps:
            self._maps[weight] = replace(
                self._listed(weight),
                make=lambda g, b: self._all(self.diagonal(weight, g, b)),
                matrices=lambda: self._matrices(weight),
            )
        return self._maps[weight]

    def diagonal(self, weight: Weight, giant: int, baby: int) -> NDArray[Any]:
        """One plaintext of a linear map, over the slots laid out."""
        return diagonal(self._matrices(weight), giant, baby)

    def _matrices(self, weight: Weight) -> tuple[SlotMatrix, ...]:
        product = self._listed(weight)
        try:
            made: tuple[SlotMatrix, ...] = self._between(product)
        except (ArithmeticError, LookupError, StopIteration, TypeError, ValueError) as err:
            raise ConfigError(f"{weight.key[:64]!r}: is no linear map of this circuit; plan again") from err
        return made

    def _vector(self, p: Public, vector: Factor, position: int, part: int) -> Vector:
        at = position if p.moves else None
        return Vector((p, part, at), partial(self._slots, p, position, part), keep=at is None and not vector.once)

    def _slots(self, p: Public, position: int, part: int) -> NDArray[Any]:
        assert p.vector is not None
        try:
            last = p.vector.places(self, position, part) if isinstance(p.vector, Rows) else position
            return self._all(np.asarray(p.value(last + 1.0, p.vector.slots(self, position, part))))
        except (ArithmeticError, LookupError, StopIteration, ValueError) as err:
            raise ConfigError(f"{p.key[:64]!r}: names what this circuit does not have; plan again") from err

    def _listed(self, weight: Weight) -> LinearMap:
        if weight not in self.products:
            raise ConfigError(f"{weight.key[:64]}: the plan lists no such linear map")
        return self.products[weight]

    def _all(self, values: NDArray[Any]) -> NDArray[Any]:
        """Repeated over a ring larger than what is laid out."""
        p = self.packing
        return np.tile(values, p.slots // p.n) if p.slots > p.n else values

    # -- what a weight needs to know of the circuit -----------------------------------------------------------------

    @cached_property
    def tokens(self) -> PlaintextSource:
        """The same circuit in the layouts of many tokens."""
        carried: dict[str, Any] = {"tight": self.tight, "loud": self.loud}
        return PlaintextSource(self.circuit, self.packing.tokens, self.products, self.reach, **carried)

    def mlp(self, halve: bool) -> PeriodicMlp:
        """The MLP's variant B."""
        return PeriodicMlp(packing=self.packing, halve=halve)

    def adds(self, weight: Biased) -> bool:
        """Whether anything is added after a linear map: a bias of its own, or the shift of the norm that it reads."""
        one = weight.weight if isinstance(weight, Tokens) else weight
        stage = self._head if isinstance(one, Unembedding) else self.linear(one.stage)
        norm = self.made[stage.reads]
        return stage.bias is not None or (isinstance(norm, Norm) and norm.bias is not None)

    def carried(self, linear: str) -> float:
        """The factor by which the norm that a linear stage reads is carried."""
        return self._norm_scale(self.linear(linear))

    @property
    def carried_head(self) -> float:
        """The same of the head."""
        return self._norm_scale(self._head)

    @cached_property
    def divisors(self) -> dict[str, float]:
        """What the output of each linear stage into the hidden layout is divided by; it is folded into the matrix."""
        fits, out = self.circuit.calibration.activations, {}
        for stage in self.circuit.stages:
            if isinstance(stage, Activation):
                out[self.made[stage.reads].label] = fits[stage.name].fit.bound
            elif isinstance(stage, Gate):
                out[self.made[stage.by].label] = 1.0 / self.scales.values[stage.by]
        return out

    def attention(self, linear: str) -> Attention:
        """The attention that a linear stage makes queries, keys or values for."""
        value = self.linear(linear).writes
        return next(s for s in readers(self.circuit.stages, value) if isinstance(s, Attention))

    def query_scale(self, linear: str) -> float:
        """What turns a product of q and k into the softmax's input: the scores' own scale over half their domain."""
        stage = self.attention(linear)
        width = self.circuit.calibration.softmaxes[stage.name].fit.width
        return 2.0 / (stage.divisor(self.circuit.shape.head_width) * width)

    def linear(self, name: str) -> Linear:
        """A linear stage by name."""
        return next(s for s in of(self.circuit.stages, Linear) if s.name == name)

    @property
    def _head(self) -> Head:
        return of(self.circuit.stages, Head)[0]

    def _norm_scale(self, reader: Linear | Head) -> float:
        return self.scales.norms[self.made[reader.reads].label].result
