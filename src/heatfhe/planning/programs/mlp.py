# SPDX-License-Identifier: Apache-2.0
"""The MLP in variants A (a level before the activation) and B (a level after it, and one that the norm can spare)."""

from __future__ import annotations

from dataclasses import replace

from heatfhe.approx import activation as approximate_activation
from heatfhe.planning.pack import to_hidden
from heatfhe.planning.plaintexts import Public
from heatfhe.planning.programs.builder import Builder
from heatfhe.planning.recorder import Traced
from heatfhe.planning.vectors import Mask, Skew
from heatfhe.planning.weights import Dense
from heatfhe.stages import Activation, Gate


def activation(b: Builder, stage: Activation, given: dict[str, Traced]) -> Traced:
    """The matrix before an activation, its bound folded in, and the activation."""
    r, fit = b.r, b.circuit.calibration.activations[stage.name].fit
    u = r.domain(_hidden(b, stage.reads, given), -1.0, 1.0)
    with r.scope(stage.name, "gelu"):
        return r.assume(approximate_activation(u, replace(fit, bound=1.0)), b.bound(stage.writes) / fit.bound)


def gate(b: Builder, stage: Gate, given: dict[str, Traced]) -> Traced:
    """The matrix that makes the other factor, and the product."""
    r, carried = b.r, b.scales.values
    by = r.assume(_hidden(b, stage.by, given), b.bound(stage.by) * carried[stage.by])
    with r.scope(b.made[stage.reads].label, "gelu"):
        return r.assume(given[stage.reads] * by, b.bound(stage.writes) * carried[stage.writes])


def _hidden(b: Builder, value: str, given: dict[str, Traced]) -> Traced:
    """P -> I(hidden), or in variant B skewed P -> P(F): a linear stage into the hidden layout."""
    r, p, linear = b.r, b.p, b.linear(value)
    name, x = linear.name, given[linear.reads]
    if b.mlp is not None:
        with r.scope(name, "linear"):
            return way_in(b, name, x)
    parts = p.hidden_parts
    products = [to_hidden(Dense(name, k if parts > 1 else None), p, halve=b.halve) for k in range(parts)]
    with r.scope(name, "linear"), r.group():
        z = r.linear(b.halved(x, products[0]), *products, period=p.n)
        u = b.shifted(r.sum_over(b.real_part(z, products[0]), p.hF, p.n // p.F), Dense(name))
        return b.replicated(u, p.hF, p.n // p.F, Public.of(Mask.FIRST_HIDDEN)) if p.n > p.F else u


def skewed(b: Builder, x: Traced) -> Traced:
    """The input of variant B: one plaintext level, while the norm's scalar is being solved."""
    r, p, v = b.r, b.p, b.mlp
    assert v is not None
    with r.group():
        whole = x + x.rotate(p.D // 2).times_i() if v.halves_input else x
        if v.regions > 1:
            turned = r.rotate_many(whole, [v.skew * a for a in range(v.regions)])
            whole = r.plain_sum([(turned[a], Public.of(Skew(a))) for a in range(v.regions)])
    if whole is x:
        return x
    whole.facts.refreshable = False
    return r.assume(whole, 1.5 * float(x.facts.bounds().max()))


def way_in(b: Builder, name: str, x: Traced) -> Traced:
    """Skewed P -> P(F): the MLP's way in in variant B, one level."""
    r, p, v = b.r, b.p, b.mlp
    assert v is not None
    weight = Dense(name, periodic=True)
    product = v.up(weight)
    with r.group():
        z = b.real_part(r.linear(x, product, period=p.n), product)
        u = b.shifted(r.sum_over(z, p.F, v.regions), weight)
    u.facts.period, u.facts.complex = p.F, False
    return u


def way_back(b: Builder, name: str, hidden: Traced) -> Traced:
    """P(F) -> P: the MLP's way back in variant B; the mask sits at the end of the block."""
    r, p, v = b.r, b.p, b.mlp
    assert v is not None
    product, (terms, stride) = v.down(Dense(name, periodic=True)), v.spread
    with r.group():
        z = b.real_part(r.linear(b.halved(hidden, product), product, period=p.n), product)
        if terms > 1:
            z = b.replicated(r.sum_over(z, stride, terms), p.D, p.t, Public.of(Mask.LOW))
        return b.shifted(z, Dense(name))
