# SPDX-License-Identifier: Apache-2.0
"""Where things are in a model: places in the order data flows, as plain records without torch.

A place names the value it reads and the one it writes (the names a circuit keeps) and the path of the module or tensor
in the Hugging Face model. Sites are made from norm and attention places; lowering turns every place into a stage.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from heatfhe.records import FAMILIES, FamilyName, Site, make_site


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedPlace:
    """Token and position rows, added into the residual stream."""

    writes: str
    token: str
    position: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NormPlace:
    """A layer norm over ``width`` entries."""

    name: str
    path: str
    reads: str
    writes: str
    weight: str
    bias: str
    eps: float
    width: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearPlace:
    """x @ weight + bias with weight (in, out); ``residual`` when its output is added to the stream."""

    name: str
    path: str
    reads: str
    writes: str
    weight: str
    bias: str
    residual: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionPlace:
    """Causal attention over a joined (q, k, v), scaled by the root of the head width."""

    name: str
    path: str
    reads: str
    writes: str
    heads: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationPlace:
    """An activation, entry by entry."""

    name: str
    path: str
    reads: str
    writes: str
    function: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidualPlace:
    """The stream plus a branch."""

    reads: str
    branch: str
    writes: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadPlace:
    """Logits over the vocabulary; the weight may be tied to the token embedding."""

    reads: str
    writes: str
    weight: str


Place = EmbedPlace | NormPlace | LinearPlace | AttentionPlace | ActivationPlace | ResidualPlace | HeadPlace


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """One model, described: its public size, its places in order, and where each named tensor is in the checkpoint."""

    kind: str
    layers: int
    width: int
    heads: int
    hidden: int
    vocabulary: int
    context: int
    places: tuple[Place, ...]
    tensors: Mapping[str, str]

    @property
    def norms(self) -> tuple[NormPlace, ...]:
        """Norm places in depth order."""
        return tuple(p for p in self.places if isinstance(p, NormPlace))

    @property
    def attentions(self) -> tuple[AttentionPlace, ...]:
        """Attention places in depth order."""
        return tuple(p for p in self.places if isinstance(p, AttentionPlace))

    @property
    def activations(self) -> tuple[ActivationPlace, ...]:
        """Activation places in depth order."""
        return tuple(p for p in self.places if isinstance(p, ActivationPlace))

    @property
    def linears(self) -> tuple[LinearPlace, ...]:
        """Linear places in depth order."""
        return tuple(p for p in self.places if isinstance(p, LinearPlace))

    def sites(self, max_counts: Mapping[str, int] | None = None) -> tuple[Site, ...]:
        """Every site in depth order; ``max_counts`` raises the largest count of a family (never below its own)."""
        tops = {name: max(f.max_count, (max_counts or {}).get(name, 0)) for name, f in FAMILIES.items()}
        found: list[Site] = []
        for place in self.places:
            families: tuple[FamilyName, ...] = ()
            if isinstance(place, NormPlace):
                families = ("norm_goldschmidt", "norm_newton")
            elif isinstance(place, AttentionPlace):
                families = ("softmax_init", "softmax_refine")
            if families:
                assert isinstance(place, (NormPlace, AttentionPlace))
                found += [make_site(place.name, f, self.layers, tops[f]) for f in families]
        return tuple(found)
