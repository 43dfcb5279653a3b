# SPDX-License-Identifier: Apache-2.0
"""Plaintext vectors by name, made from the circuit on demand: a plan stores keys, never weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from heatfhe.circuit import Activation, Attention, Circuit, Head, Linear, Norm
from heatfhe.errors import ConfigError
from heatfhe.planning.pack import Packing, PeriodicMlp, Product, encoded
from heatfhe.planning.pack.layout import Index
from heatfhe.planning.programs.scales import scales
from heatfhe.planning.public import Public

Made: TypeAlias = "float | NDArray[Any]"
Term = tuple[NDArray[np.float64], Index, Index]

MOVING = frozenset({"rows", "causal", "position", "append.k", "append.v"})


class PlaintextSource:
    """Every number and slot vector a plan's steps name, computed from the circuit's folded weights when asked."""

    def __init__(self, circuit: Circuit, packing: Packing, products: Mapping[str, Product], window: float) -> None:
        self.circuit, self.packing, self.products = circuit, packing, dict(products)
        self.scales = scales(circuit, window)
        self._terms = lru_cache(maxsize=8)(self._terms_of)

    def moves(self, key: str) -> bool:
        """Whether a plaintext depends on the position."""
        return any(name in MOVING for name, _ in Public.parse(key).factors)

    def plain(self, key: str, position: int, part: int = 0) -> Made:
        """The number or slot vector a key stands for."""
        try:
            value = Public.parse(key).value(lambda name: self._factor(name, position, part))
        except (LookupError, StopIteration, ValueError) as err:
            raise ConfigError(f"{key[:64]!r}: names what this circuit does not have; plan again") from err
        return float(value) if np.ndim(value) == 0 and not np.iscomplexobj(value) else self._repeat(np.asarray(value))

    def diagonal(self, product: str, giant: int, baby: int) -> NDArray[Any]:
        """One plaintext of a linear map, over all slots."""
        return self._repeat(self._diagonal(product, giant, baby))

    def _diagonal(self, product: str, giant: int, baby: int) -> NDArray[Any]:
        if product not in self.products:
            raise ConfigError(f"{product}: the plan lists no such linear map")
        try:
            return encoded(self.products[product], self._terms(product), giant, baby)
        except (LookupError, StopIteration, ValueError) as err:
            raise ConfigError(f"{product[:64]!r}: is no linear map of this circuit; plan again") from err

    def _repeat(self, values: NDArray[Any]) -> NDArray[Any]:
        p = self.packing
        return np.tile(values, p.slots // p.n) if p.slots > p.n else values

    # -- factors ----------------------------------------------------------------------------------------------------

    def _factor(self, name: str, position: int, part: int) -> Any:
        p = self.packing
        if name == "rows":
            return float(position + 1)
        if name == "position":
            return self._placed(self.circuit.folded.position[position], p.residual)
        if name == "words":
            return (p.vocabulary(part) >= 0).astype(np.float64)
        if name == "low":
            return (np.arange(p.n) < self.circuit.shape.width).astype(np.float64)
        if name.startswith("skew."):
            return (np.arange(p.n) // p.F == int(name[5:])).astype(np.float64)
        if name == "first.hidden":
            return (np.arange(p.n) % p.stride // p.hF == 0).astype(np.float64)
        if name.startswith("bias:"):
            return self._bias(name[5:], part)
        if name.startswith("map:"):
            _, product, giant, baby = name.split(":")
            return self._diagonal(product, int(giant), int(baby))
        e, c, h = p.coordinates
        tau, kappa = position % p.t, position // p.t
        masks: dict[str, Callable[[], Any]] = {
            "first": lambda: c == 0,
            "idle": lambda: h >= self.circuit.shape.heads,
            "causal": lambda: (e % p.m * p.t + c <= position) & (h < self.circuit.shape.heads),
            "append.k": lambda: (e % p.m == kappa) & (c == tau),
            "append.v": lambda: ((e + part) % p.m == kappa) & (c == tau),
        }
        if name not in masks:
            raise ConfigError(f"{name!r}: no plaintext of that name; the plan is of another release, plan again")
        return np.asarray(masks[name](), dtype=np.float64)

    def _placed(self, row: NDArray[np.float64], index: Index) -> NDArray[np.float64]:
        padded = np.append(row, 0.0)
        return np.asarray(padded[index])

    def _bias(self, name: str, part: int) -> NDArray[np.float64]:
        p, folded = self.packing, self.circuit.folded
        if name == "head":
            return self._placed(folded.head.bias, p.vocabulary(part))
        if name == "centred":
            centred = folded.head.bias - folded.head.bias.mean()
            return self._placed(centred * self.scales.logits, p.vocabulary(part))
        if "/" in name:  # q, k or v of one attention
            stage, kind = name.split("/")
            scale = self._query_scale(stage) if kind == "q" else 1.0
            return self._placed(self._third(folded.linears[stage].bias, kind) * scale, p.heads)
        if name.endswith("~"):
            stem = name[:-1]
            return self._placed(folded.linears[stem].bias / self._activations[stem], self._mlp(False).hidden)
        if name in self._activations:
            return self._placed(folded.linears[name].bias / self._activations[name], p.hidden(part))
        return self._placed(folded.linears[name].bias * self.scales.residual, p.residual)

    # -- linear maps ------------------------------------------------------------------------------------------------

    def _terms_of(self, product: str) -> tuple[Term, ...]:
        p, folded, scales = self.packing, self.circuit.folded, self.scales
        spec = self.products[product]
        stem, _, tail = product.rpartition(".")
        if stem in ("head", "centred", "embedding"):
            parts = [int(tail), int(tail) + 1] if spec.pair or spec.join else [int(tail)]
            if stem == "embedding":
                return tuple((folded.token, p.vocabulary(k), p.residual) for k in parts)
            head = folded.head.weight / self._carried_head
            if stem == "centred":
                head = (head - head.mean(axis=1, keepdims=True)) * scales.logits
            return tuple((head, p.residual, p.vocabulary(k)) for k in parts)
        if "/" in product:
            stage, kind = product.split("/")
            scale = (self._query_scale(stage) if kind == "q" else 1.0) / self._carried(stage)
            return ((self._third(folded.linears[stage].weight, kind) * scale, p.residual, p.heads),)
        if product.endswith("~"):
            return self._periodic(product[:-1], spec)
        part = 0
        if product not in folded.linears:
            product, part = stem, int(tail)
        weight = folded.linears[product].weight
        if product in self._activations:
            scale = 1.0 / (self._activations[product] * self._carried(product))
            return ((weight * scale, p.residual, p.hidden(part)),)
        owner = self._owner[product]
        if owner in scales.activation:
            return ((weight * (scales.residual / scales.activation[owner]), p.hidden(part), p.residual),)
        return ((weight * (scales.residual / scales.attention[owner]), p.heads, p.residual),)

    def _mlp(self, halve: bool) -> PeriodicMlp:
        return PeriodicMlp(packing=self.packing, halve=halve)

    def _periodic(self, name: str, spec: Product) -> tuple[Term, ...]:
        """A product of the MLP's variant B."""
        weight = self.circuit.folded.linears[name].weight
        if name in self._activations:
            mlp = self._mlp(spec.join)
            scaled = weight / (self._activations[name] * self._carried(name))
            offsets = (0, self.packing.D // 2) if spec.join else (0,)
            return tuple((scaled, mlp.skewed(k), mlp.hidden) for k in offsets)
        mlp = self._mlp(spec.half > 0)
        scale = self.scales.residual / self.scales.activation[self._owner[name]]
        return ((weight * scale, mlp.hidden, mlp.spread_out),)

    def _carried(self, linear: str) -> float:
        """The factor by which the norm that a linear stage reads is carried."""
        reads = next(s.reads for s in self.circuit.stages if isinstance(s, Linear) and s.name == linear)
        return self._norm_scale(reads)

    @property
    def _carried_head(self) -> float:
        return self._norm_scale(next(s.reads for s in self.circuit.stages if isinstance(s, Head)))

    def _norm_scale(self, value: str) -> float:
        norm = next(s for s in self.circuit.stages if isinstance(s, Norm) and s.writes == value)
        return self.scales.norms[norm.name].result

    @property
    def _owner(self) -> dict[str, str]:
        """The attention or activation whose output each linear stage reads."""
        made = {s.writes: s.name for s in self.circuit.stages if isinstance(s, (Attention, Activation))}
        return {s.name: made[s.reads] for s in self.circuit.stages if isinstance(s, Linear) and s.reads in made}

    @property
    def _activations(self) -> dict[str, float]:
        """Bound of the activation that reads each linear stage's output; it is folded into the matrix."""
        written = {s.writes: s.name for s in self.circuit.stages if isinstance(s, Linear)}
        fits = self.circuit.calibration.activations
        return {written[s.reads]: fits[s.name].fit.bound for s in self.circuit.stages if isinstance(s, Activation)}

    def _query_scale(self, stage: str) -> float:
        """2 / (sqrt(head width) * width of the scores): what turns a product of q and k into the softmax's input."""
        fit = self.circuit.calibration.softmaxes[stage.removesuffix(".c_attn")].fit
        return 2.0 / (math.sqrt(self.circuit.shape.head_width) * fit.width)

    def _third(self, joined: NDArray[np.float64], kind: str) -> NDArray[np.float64]:
        d = self.circuit.shape.width
        start = "qkv".index(kind) * d
        return joined[..., start : start + d]
