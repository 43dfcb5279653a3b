# SPDX-License-Identifier: Apache-2.0
"""All halting distributions of a model in one tensor: one parameter, one evaluation per forward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from heatfhe.errors import ConfigError
from heatfhe.halting.distribution import GAMMA, log_probabilities, mode, probabilities, ramp
from heatfhe.halting.prior import kl, log_prior
from heatfhe.records import Site


class HaltingTable(nn.Module):
    """Logits (sites, largest count), row by row in site order; entries outside a site's support are never read."""

    floors: Tensor
    tops: Tensor
    packed: Tensor

    def __init__(self, sites: Sequence[Site], *, gamma: float = GAMMA) -> None:
        super().__init__()
        if not sites:
            raise ConfigError("a halting table needs at least one site")
        self.sites = tuple(sites)
        self.rows = {site.name: row for row, site in enumerate(self.sites)}
        self.width = max(site.max_count for site in self.sites)
        start = [ramp(s.max_count, s.floor, gamma, width=self.width) for s in self.sites]
        self.logits = nn.Parameter(torch.stack(start).float())
        self.register_buffer("floors", torch.tensor([s.floor for s in self.sites]), persistent=False)
        self.register_buffer("tops", torch.tensor([s.max_count for s in self.sites]), persistent=False)
        held = [row * (self.width + 1) + i for row, s in enumerate(self.sites) for i in range(s.max_count + 1)]
        self.register_buffer("packed", torch.tensor(held), persistent=False)  # a row's own states in the flat table

    def probabilities(self) -> Tensor:
        """p of every site over absolute counts 0..width, (sites, width + 1), with gradient."""
        return probabilities(self.logits, self.floors, self.tops)

    def distributions(self) -> dict[str, Tensor]:
        """p of every site over its own states 0..max_count, cut from the table in one piece."""
        rows = self.probabilities().flatten().index_select(0, self.packed)
        parts = rows.split([site.max_count + 1 for site in self.sites])
        return {site.name: part for site, part in zip(self.sites, parts, strict=True)}

    def log_probabilities(self) -> Tensor:
        """log p of every site, -inf outside its support."""
        return log_probabilities(self.logits, self.floors, self.tops)

    def log_prior(self, targets: Sequence[int], p: float, *, geometric_at_zero: bool = True) -> Tensor:
        """Every site's log prior over 0..width, on the CPU: made from plain numbers, no GPU is waited for."""
        w = torch.tensor(list(targets))
        floors, tops = (torch.tensor([getattr(s, k) for s in self.sites]) for k in ("floor", "max_count"))
        prior = log_prior(w, floors, tops, p, width=self.width, geometric_at_zero=geometric_at_zero)
        return prior.to(self.logits.dtype)

    def divergence(self, log_prior: Tensor) -> Tensor:
        """KL of each distribution from its prior (sites, width + 1), on the logits' device. Its mean is the loss."""
        return kl(self.probabilities(), self.log_probabilities(), log_prior)

    @torch.no_grad()
    def modes(self) -> dict[str, int]:
        """The mode of every site: the count it would be exported with."""
        found = mode(self.probabilities()).tolist()
        return {site.name: int(found[row]) for row, site in enumerate(self.sites)}

    @torch.no_grad()
    def load(self, logits: Mapping[str, Sequence[float]]) -> None:
        """Set logits by site name (from the floor up), as ``dump`` gave them."""
        for name, values in logits.items():
            if name not in self.rows:
                raise ConfigError(f"no such site: {name}; sites look like {self.sites[0].name}")
            site = self.sites[self.rows[name]]
            if len(values) != site.max_count - site.floor:
                raise ConfigError(f"{name}: has {site.max_count - site.floor} halting logits, got {len(values)}")
            self.logits[self.rows[name], site.floor : site.max_count] = torch.tensor(values, dtype=self.logits.dtype)

    @torch.no_grad()
    def dump(self) -> dict[str, list[float]]:
        """Logits by site name, from the floor up."""
        rows = self.logits.detach().cpu().tolist()
        return {s.name: rows[row][s.floor : s.max_count] for row, s in enumerate(self.sites)}
