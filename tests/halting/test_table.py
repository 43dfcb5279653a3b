# SPDX-License-Identifier: Apache-2.0
"""The halting table: one tensor for all sites, equal to each site alone."""

from __future__ import annotations

import pytest
import torch

from heatfhe.errors import ConfigError
from heatfhe.halting import HaltingTable, kl, log_prior, log_probabilities, probabilities, ramp
from heatfhe.records import Site, make_site


def sites() -> list[Site]:
    return [
        make_site("h.0.ln_1", "norm_goldschmidt", 1),
        make_site("h.0.ln_1", "norm_newton", 1),
        make_site("h.0.attn", "softmax_init", 1),
        make_site("h.0.attn", "softmax_refine", 1, max_count=20),
    ]


def test_starts_at_the_ramp_with_its_mode_at_the_top() -> None:
    table = HaltingTable(sites())
    assert table.modes() == {s.name: s.max_count for s in sites()}
    p = table.probabilities()
    for row, site in enumerate(sites()):
        alone = probabilities(ramp(site.max_count, site.floor), site.floor)
        assert torch.allclose(p[row, : site.max_count + 1].double(), alone, atol=1e-6)
    (newton,) = (row for row, site in enumerate(sites()) if site.name == "h.0.ln_1/newton")
    assert abs(float((p[newton].double() * torch.arange(p.shape[1])).sum()) - 1.606198) < 1e-5


def test_divergence_equals_each_site_alone() -> None:
    table = HaltingTable(sites())
    targets = [4, 0, 8, 2]
    found = table.divergence(table.log_prior(targets, 0.7))
    for row, (site, w) in enumerate(zip(sites(), targets)):
        logits = ramp(site.max_count, site.floor)
        prior = log_prior(w, site.floor, site.max_count, 0.7, width=site.max_count)
        alone = kl(probabilities(logits, site.floor), log_probabilities(logits, site.floor), prior)
        assert abs(float(found[row].detach()) - float(alone)) < 1e-5


def test_logits_outside_a_support_never_move() -> None:
    table = HaltingTable(sites())
    table.divergence(table.log_prior([0, 0, 0, 0], 0.6)).mean().backward()
    grad = table.logits.grad
    assert grad is not None
    for row, site in enumerate(sites()):
        assert float(grad[row, : site.floor].abs().sum()) == 0.0
        assert float(grad[row, site.max_count :].abs().sum()) == 0.0
        assert bool((grad[row, site.floor : site.max_count] != 0).all())


def test_dump_and_load_round_trip() -> None:
    table, other = HaltingTable(sites()), HaltingTable(sites())
    with torch.no_grad():
        table.logits += torch.randn(table.logits.shape, generator=torch.Generator().manual_seed(2))
    other.load(table.dump())
    assert torch.equal(other.probabilities(), table.probabilities())
    with pytest.raises(ConfigError, match=r"h\.0\.ln_1/newton: has 3 halting logits, got 2"):
        other.load({"h.0.ln_1/newton": [0.0, 1.0]})
    with pytest.raises(ConfigError, match="no such site"):
        other.load({"h.9.ln_1/newton": [0.0]})
