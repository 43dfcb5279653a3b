# SPDX-License-Identifier: Apache-2.0
"""Makes the numbers of plaintext values and linear maps from the circuit on demand: a plan stores no weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heatfhe.circuit import Activation, Attention, Circuit, Head, Linear, Norm
from heatfhe.errors import ConfigError
from heatfhe.planning.pack import LinearMap, Packing, PeriodicMlp, Vector
from heatfhe.planning.plaintexts import Public
from heatfhe.planning.scales import scales
from heatfhe.planning.weights import Weight


class PlaintextSource:
    """Every number and slot vector a plan's steps name, computed from the circuit's folded weights when asked."""

    def __init__(
        self,
        circuit: Circuit,
        packing: Packing,
        products: Mapping[Weight, LinearMap],
        window: float,
        *,
        tight: bool = False,
    ) -> None:
        self.circuit, self.packing, self.products = circuit, packing, products
        self.scales = scales(circuit, window, tight=tight)
        self._terms = lru_cache(maxsize=8)(lambda m: m.weight.terms(self, m))
        self._maps: dict[Weight, LinearMap] = {}

    def plain(self, p: Public, position: int, part: int = 0) -> float | Vector:
        """The number a plaintext is at a position, or its vector, made when it is needed."""
        if p.vector is None:
            return float(p.value(float(position + 1)))
        at = position if p.moves else None
        return Vector((p, part, at), partial(self._slots, p, position, part), keep=at is None)

    def linear_map(self, weight: Weight) -> LinearMap:
        """A linear map with its plaintexts."""
        if weight not in self._maps:
            self._maps[weight] = replace(self._listed(weight), make=lambda g, b: self._all(self.diagonal(weight, g, b)))
        return self._maps[weight]

    def diagonal(self, weight: Weight, giant: int, baby: int) -> NDArray[Any]:
        """One plaintext of a linear map, over the slots laid out."""
        product = self._listed(weight)
        try:
            return product.diagonal(self._terms(product), giant, baby)
        except (ArithmeticError, LookupError, StopIteration, TypeError, ValueError) as err:
            raise ConfigError(f"{weight.key[:64]!r}: is no linear map of this circuit; plan again") from err

    def _slots(self, p: Public, position: int, part: int) -> NDArray[Any]:
        assert p.vector is not None
        try:
            return self._all(np.asarray(p.value(float(position + 1), p.vector.slots(self, position, part))))
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

    def mlp(self, halve: bool) -> PeriodicMlp:
        """The MLP's variant B."""
        return PeriodicMlp(packing=self.packing, halve=halve)

    def carried(self, linear: str) -> float:
        """The factor by which the norm that a linear stage reads is carried."""
        return self._norm_scale(self._linear(linear).reads)

    @property
    def carried_head(self) -> float:
        """The same of the head."""
        return self._norm_scale(next(s.reads for s in self.circuit.stages if isinstance(s, Head)))

    @property
    def owners(self) -> dict[str, str]:
        """The attention or activation whose output each linear stage reads."""
        made = {s.writes: s.name for s in self.circuit.stages if isinstance(s, (Attention, Activation))}
        return {s.name: made[s.reads] for s in self.circuit.stages if isinstance(s, Linear) and s.reads in made}

    @property
    def activation_bounds(self) -> dict[str, float]:
        """Bound of the activation that reads each linear stage's output; it is folded into the matrix."""
        written = {s.writes: s.name for s in self.circuit.stages if isinstance(s, Linear)}
        fits = self.circuit.calibration.activations
        return {written[s.reads]: fits[s.name].fit.bound for s in self.circuit.stages if isinstance(s, Activation)}

    def query_scale(self, linear: str) -> float:
        """2 / (sqrt(head width) * width of the scores): what turns a product of q and k into the softmax's input."""
        joined = self._linear(linear).writes
        name = next(s.name for s in self.circuit.stages if isinstance(s, Attention) and s.reads == joined)
        return 2.0 / (math.sqrt(self.circuit.shape.head_width) * self.circuit.calibration.softmaxes[name].fit.width)

    def _linear(self, name: str) -> Linear:
        return next(s for s in self.circuit.stages if isinstance(s, Linear) and s.name == name)

    def _norm_scale(self, value: str) -> float:
        norm = next(s for s in self.circuit.stages if isinstance(s, Norm) and s.writes == value)
        return self.scales.norms[norm.name].result
