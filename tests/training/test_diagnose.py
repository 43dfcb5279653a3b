# SPDX-License-Identifier: Apache-2.0
"""The site that left first is found and named; the injected noise is where and what it should be."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from heatfhe.planning import Carried
from heatfhe.planning import preset as parameter_set
from heatfhe.ranges import calibrate
from heatfhe.sites import Prepared
from heatfhe.stages import solved
from heatfhe.training import first_to_leave, noise_tap
from tests.training.short import fresh, windows

TOKENS = torch.from_numpy(windows(count=4).rows[:, :-1])


@pytest.fixture
def prepared() -> Prepared:
    made = fresh()
    made.adopt(calibrate(made, [TOKENS], delta_2=2, argmax=False))
    made.set_mode("training", halting="hard")
    return made


def test_nothing_left(prepared: Prepared) -> None:
    assert first_to_leave(prepared, TOKENS).startswith("no site left its domain")


@pytest.mark.parametrize(
    ("weight", "factor", "site"),
    [
        ("transformer.wte.weight", 10.0, "h.0.ln_1/goldschmidt"),
        ("transformer.h.1.attn.c_attn.weight", 10.0, "h.1.attn/init"),
        ("transformer.h.0.mlp.c_fc.weight", 50.0, "h.0.mlp"),
        ("transformer.h.1.mlp.c_proj.weight", 50.0, "ln_f/goldschmidt"),
    ],
)
def test_the_first_site_is_named_with_its_numbers(prepared: Prepared, weight: str, factor: float, site: str) -> None:
    with torch.no_grad():
        prepared.model.get_parameter(weight).mul_(factor)
    words = first_to_leave(prepared, TOKENS)
    assert words.startswith(f"{site}: input ")
    assert "lies outside its domain [" in words


def test_sums_are_judged_as_means(prepared: Prepared) -> None:
    known = prepared.calibration
    assert known is not None
    name, row = next(iter(known.softmaxes.items()))
    narrow = replace(row.fit, init=replace(row.fit.init, hi=row.fit.init.lo * 1.01))
    prepared.adopt(replace(known, softmaxes={**known.softmaxes, name: replace(row, fit=narrow)}))
    assert first_to_leave(prepared, TOKENS).startswith(f"{name}/init: input ")


def test_values_that_are_not_finite_are_found_without_a_calibration() -> None:
    prepared = fresh()
    with torch.no_grad():
        prepared.model.get_parameter("transformer.h.1.ln_1.bias")[0] = math.inf
    assert "not finite" in first_to_leave(prepared, TOKENS)
    assert first_to_leave(prepared, TOKENS).startswith("h.1.attn")


def test_noise_has_the_stated_size_and_depends_on_seed_and_step_alone() -> None:
    zero, sizes = torch.zeros(200, 500), {"h.0.ln_1/z": (4.0, 0.0), "h.0.attn/sum": (0.5, -1.0)}
    first, same, later, other = (
        noise_tap(sizes, 0.4, *at)("h.0.ln_1/z", zero) for at in ((3, 5), (3, 5), (3, 6), (4, 5))
    )
    assert torch.equal(first, same)
    assert not torch.equal(first, later)
    assert not torch.equal(first, other)
    assert float(first.std()) == pytest.approx(0.1, rel=0.02)  # carried four times as large
    assert float(first.mean()) == pytest.approx(0.0, abs=0.002)
    assert torch.equal(noise_tap(sizes, 0.1, 3, 5)("h.0.attn.qkv", zero), zero)  # nothing between solvers is refreshed
    sums = noise_tap(sizes, 0.1, 3, 5)("h.0.attn/sum", zero)  # carried 1 / (2 n) times as large in row n
    assert float(sums[9].std()) == pytest.approx(2.0, rel=0.15)
    behind = noise_tap(sizes, 0.1, 3, 5, public=30)("h.0.attn/sum", zero)  # whose row has forty positions
    assert torch.allclose(behind[9], 4.0 * sums[9])
    assert float((sums / torch.arange(1.0, 201.0)[:, None]).std()) == pytest.approx(0.2, rel=0.02)


def test_noise_enters_at_every_site(prepared: Prepared) -> None:
    seen: set[str] = set()
    architecture, known = prepared.architecture, prepared.calibration
    assert known is not None
    sizes = Carried(architecture.stages, architecture.shape, parameter_set("insecure-paper-12"))(known)
    assert set(sizes) == solved(architecture.stages)
    tap = noise_tap(sizes, 1e-3, 0, 0)

    def watch(name: str, value: torch.Tensor) -> torch.Tensor:
        out = tap(name, value)
        if not torch.equal(out, value):
            seen.add(name.rpartition("/")[0])
        return out

    with torch.no_grad(), prepared.tapped(watch):
        prepared(TOKENS)
    assert {site.name.rpartition("/")[0] for site in prepared.sites} <= seen
