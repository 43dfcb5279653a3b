# SPDX-License-Identifier: Apache-2.0
"""What every site of one prepared model shares while it runs: the mode, the distributions, taps and range terms."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Literal

import torch
from torch import Tensor

from heatfhe.errors import SiteError
from heatfhe.halting import HaltingTable, gpu_kernels
from heatfhe.sites.guards import RangeBounds, excess, guard

Mode = Literal["exact", "training", "deployed"]
# Sees (and may replace) named values on the way, under the names a circuit's tap sees.
Tap = Callable[[str, Tensor], Tensor]


@dataclass
class Switch:
    """The one mutable object a prepared model's sites look at. ``Prepared.set_mode`` turns it.

    ``push`` is the weight of the push-back gradient per entry (see ``guard``); a loop that divides its loss by the
    number of micro-batches divides ``push`` as well. ``slack`` is how far below the end of its domain the guard of a
    softmax row's sum stands, as a factor: rows of unseen text go further than those trained on. ``bounds`` turns the
    range terms on, ``variance_bounds`` widens their bound for single norms, ``medians`` are the variances that norms
    usually see, where a squeeze measures spreads from them. ``fused`` holds the GPU's kernels, None where triton is not
    installed. ``public`` rows come first in the forward pass in flight: a prefix, computed exactly.
    """

    mode: Mode = "exact"
    soft: bool = False
    guards: bool = False
    push: float = 1e-4
    slack: float = 1.0
    bounds: RangeBounds | None = None
    variance_bounds: dict[str, float] = field(default_factory=dict)
    medians: dict[str, float] = field(default_factory=dict)
    tap: Tap | None = None
    public: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    distributions: dict[str, Tensor] | None = None
    terms: dict[str, Tensor] = field(default_factory=dict)
    hooks: list[Any] = field(default_factory=list)
    fused: ModuleType | None = field(default_factory=lambda: gpu_kernels("heatfhe.sites.fused"))

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Run a block after which the mode and what comes with it (see ``Prepared.set_mode``) are as before."""
        saved = {name: getattr(self, name) for name in ("mode", "soft", "guards", "bounds", "push")}
        try:
            yield
        finally:
            vars(self).update(saved)

    def begin(self, halting: HaltingTable) -> None:
        """Start a forward pass: evaluate the distributions once, forget the last pass's range terms."""
        self.terms = {}
        self.distributions = halting.distributions() if self.mode == "training" and self.soft else None

    def kernels(self, x: Tensor) -> ModuleType | None:
        """The GPU's kernels where a site may run x through them: something learns, nothing is tapped on the way."""
        learns = self.bounds is not None or torch.is_grad_enabled()
        wanted = self.mode == "training" or (self.mode == "exact" and learns)
        fits = x.is_cuda and x.dtype in (torch.float32, torch.bfloat16) and self.tap is None
        return self.fused if wanted and fits else None

    def distribution(self, table: HaltingTable, site: str, like: Tensor) -> Tensor | None:
        """The site's distribution over its counts when halting is soft, else None."""
        if not (self.mode == "training" and self.soft):
            return None
        if self.distributions is None:
            self.distributions = table.distributions()
        return self.distributions[site].to(like.dtype)

    def count(self, site: str) -> int:
        """The site's hard count."""
        if site not in self.counts:
            raise SiteError(site, "has no count yet; adopt a calibration, or set counts, before running it")
        return self.counts[site]

    def see(self, name: str, value: Tensor) -> Tensor:
        """Pass a named value through the tap."""
        return value if self.tap is None else self.tap(name, value)

    def private(self, rows: Tensor) -> Tensor:
        """Rows (..., T, d) without those of the prefix."""
        return rows[..., self.public :, :] if self.public else rows

    def behind(self, exact: Callable[[Tensor], Tensor], own: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
        """``own`` of rows (..., T, d), ``exact`` of those of the prefix."""
        if not self.public:
            return own(rows)
        return torch.cat([exact(rows[..., : self.public, :]), own(self.private(rows).contiguous())], dim=-2)

    def see_rows(self, name: str, rows: Tensor) -> Tensor:
        """As see, with rows (..., T, d) of which the tap sees those behind the prefix."""
        return rows if self.tap is None else self.behind(lambda x: x, lambda x: self.see(name, x), rows)

    def clamp(self, value: Tensor, lo: float | None, hi: float | None) -> Tensor:
        """The value, guarded while training."""
        return guard(value, lo, hi, self.push) if self.guards and self.mode == "training" else value

    def variance_bound(self, norm: str) -> float:
        """Where a norm's range term begins: the bounds' own value, or the norm's where that is wider."""
        assert self.bounds is not None
        return max(self.bounds.variance, self.variance_bounds.get(norm, 0.0))

    def penalise(self, term: str, value: Tensor, bound: float, tokens: int) -> None:
        """Add a site's excess to a named range term."""
        self.add_term(term, excess(value, bound, tokens))

    def add_term(self, term: str, share: Tensor) -> None:
        """Add one site's share, already per token, to a named range term."""
        self.terms[term] = self.terms[term] + share if term in self.terms else share

    def total(self) -> Tensor | None:
        """Sum of the range terms of the last forward pass; None when there are none."""
        return torch.stack(list(self.terms.values())).sum() if self.terms else None
