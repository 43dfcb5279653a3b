# SPDX-License-Identifier: Apache-2.0
"""Packing: pack then unpack is the identity, padding is zero, and every product equals its matrix on plain slots."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from heatfhe.ckks import diagonal
from heatfhe.errors import ConfigError, PlanError
from heatfhe.planning import LinearMap, Packing
from heatfhe.planning.pack import (
    PeriodicMlp,
    from_heads,
    from_hidden,
    from_vocabulary,
    power_of_two,
    to_heads,
    to_hidden,
    to_vocabulary,
)
from heatfhe.planning.weights import Dense
from heatfhe.stages import Shape
from tests.planning.clear_run import collect


@st.composite
def packings(draw: Any) -> Packing:
    heads, head_width = draw(st.integers(1, 6)), draw(st.integers(1, 9))
    width = heads * head_width
    hidden, vocabulary = draw(st.integers(1, 5 * width)), draw(st.integers(2, 300))
    shape = Shape(layers=1, width=width, heads=heads, hidden=hidden, vocabulary=vocabulary, context=64)
    least = power_of_two(heads) * power_of_two(head_width)
    slots = least << draw(st.integers(0, 5))
    room = min(slots, least * power_of_two(head_width)) // least * power_of_two(head_width)
    return Packing(shape, slots, draw(st.integers(1, min(64, room))))


@given(packings(), st.integers(0, 2**32 - 1))
@settings(max_examples=80, deadline=None)
def test_pack_then_unpack_is_the_identity(p: Packing, seed: int) -> None:
    rng = np.random.default_rng(seed)
    row = rng.standard_normal((2, p.shape.width))
    assert np.array_equal(collect(p.pack_residual(row), p.residual, p.shape.width), row)
    words = rng.standard_normal(p.shape.vocabulary)
    parts = p.pack_vocabulary(words)
    assert len(parts) == p.vocabulary_parts
    assert np.array_equal(p.unpack_vocabulary(list(parts)), words)
    hidden = rng.standard_normal(p.shape.hidden)
    back = sum(collect(p.place(hidden, p.hidden(k)), p.hidden(k), p.shape.hidden) for k in range(p.hidden_parts))
    assert np.array_equal(back, hidden)
    heads = p.place(row[0], p.heads)
    assert np.array_equal(collect(heads, p.heads, p.shape.width), row[0])


@given(packings())
@settings(max_examples=60, deadline=None)
def test_layouts_have_their_periods_and_zero_padding(p: Packing) -> None:
    x = p.pack_residual(np.ones(p.shape.width))
    assert np.array_equal(x, np.roll(x, p.D))
    assert x.sum() == p.shape.width * p.slots / p.D
    for part in p.pack_vocabulary(np.ones(p.shape.vocabulary)):
        assert np.array_equal(part, np.roll(part, p.V))
    spread = p.place(np.ones(p.shape.width), p.heads)
    assert spread.sum() == p.shape.width * p.t * (p.slots // p.n)  # every entry in each of the t copies
    assert p.capacity >= p.context
    assert p.m <= p.dh


def apply(p: Packing, product: LinearMap, terms: list[Any], x: np.ndarray, y: np.ndarray | None = None) -> np.ndarray:
    """A product on plain slots, as an engine does it."""
    if product.half:
        x = x + 1j * np.roll(x, -product.half)
    if product.join and y is not None:
        x = x + 1j * y
    total, matrices = np.zeros(p.n, dtype=complex), product.between(terms)
    for g in product.giants:
        inner = sum(diagonal(matrices, g, b) * np.roll(x, -b) for b in product.babies)
        total += np.roll(inner, -g)
    return total


def tree(x: np.ndarray, stride: int, terms: int) -> np.ndarray:
    return np.asarray(sum(np.roll(x, -stride * k) for k in range(terms)))


@given(packings(), st.booleans(), st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None)
def test_every_product_is_its_matrix(p: Packing, halve: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape, n = p.shape, p.n
    x = rng.standard_normal(shape.width)

    def check(
        product: LinearMap, matrix: np.ndarray, source: Any, target: Any, stride: int, terms: int, copy: Any, given: Any
    ) -> None:
        z = apply(p, product, [(matrix, source, target)], p.place(given, source)[:n])
        z = tree(z + z.conj() if product.complex else z, stride, terms)
        expected = p.place(given @ matrix, target)[:n]
        assert np.allclose(np.where(copy, z, 0), np.where(copy, expected, 0), atol=1e-9)

    everywhere = np.ones(n, dtype=bool)
    square = rng.standard_normal((shape.width, shape.width))
    in_first = np.arange(n) % p.stride // p.Hp == 0
    check(to_heads(Dense("q"), p, halve=halve), square, p.residual, p.heads, p.Hp, p.t, in_first, x)
    check(from_heads(Dense("o"), p, halve=halve), square, p.heads, p.residual, p.D, p.t, everywhere, x)
    up = rng.standard_normal((shape.width, shape.hidden))
    h = rng.standard_normal(shape.hidden)
    in_first = np.arange(n) % p.stride // p.hF == 0
    total = np.zeros(shape.width)
    for part in range(p.hidden_parts):
        layout = p.hidden(part)
        check(to_hidden(Dense("f"), p, halve=halve), up, p.residual, layout, p.hF, n // p.F, in_first, x)
        d = from_hidden(Dense("d"), p, halve=halve)
        z = apply(p, d, [(up.T, layout, p.residual)], p.place(h, layout)[:n])
        z = tree(z + z.conj() if d.complex else z, p.D, p.t)
        total = total + collect(z, p.residual, shape.width)
    assert np.allclose(total, h @ up.T, atol=1e-9)


@given(packings(), st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None)
def test_vocabulary_products_one_by_one_and_in_pairs(p: Packing, seed: int) -> None:
    rng = np.random.default_rng(seed)
    head = rng.standard_normal((p.shape.width, p.shape.vocabulary))
    x, hot = rng.standard_normal(p.shape.width), rng.standard_normal(p.shape.vocabulary)
    layouts = [p.vocabulary(k) for k in range(p.vocabulary_parts)]
    found = np.zeros(p.shape.width)
    slots = p.pack_residual(x)[: p.n]
    logits = [part[: p.n] for part in p.pack_vocabulary(x @ head)]
    rows = [part[: p.n] for part in p.pack_vocabulary(hot)]
    for k in range(0, len(layouts), 2):
        pair = layouts[k : k + 2]
        two = len(pair) == 2
        out = to_vocabulary(Dense("l"), p, halve=not two, pair=two)
        z = apply(p, out, [(head, p.residual, layout) for layout in pair], slots)
        z = tree(z, p.V, max(1, p.D // p.V))
        assert np.allclose(z + z.conj() if out.complex else z, logits[k], atol=1e-9)
        if two:
            assert np.allclose(1j * (z.conj() - z), logits[k + 1], atol=1e-9)
        back = from_vocabulary(Dense("e"), p, halve=not two, join=two)
        z = apply(p, back, [(head.T, layout, p.residual) for layout in pair], rows[k], rows[k + 1] if two else None)
        z = tree(z + z.conj() if back.complex else z, p.D, max(1, p.V // p.D))
        found += collect(z, p.residual, p.shape.width)
    assert np.allclose(found, hot @ head.T, atol=1e-9)


@given(packings(), st.booleans(), st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None)
def test_the_periodic_mlp_is_its_matrices(p: Packing, halve: bool, seed: int) -> None:
    rng, mlp = np.random.default_rng(seed), PeriodicMlp(packing=p, halve=halve)
    assume(mlp.fits)
    x, h = rng.standard_normal(p.shape.width), rng.standard_normal(p.shape.hidden)
    up = rng.standard_normal((p.shape.width, p.shape.hidden))
    whole = p.pack_residual(x)[: p.n]
    if mlp.halves_input:
        whole = whole + 1j * np.roll(whole, -p.D // 2)
    region = np.arange(p.n) // p.F
    whole = sum((region == a) * np.roll(whole, -mlp.skew * a) for a in range(mlp.regions))
    product = mlp.up(Dense("u"))
    offsets = (0, p.D // 2) if product.join else (0,)
    z = apply(p, product, [(up, mlp.skewed(k), mlp.hidden) for k in offsets], whole)
    z = tree(z + z.conj() if product.complex else z, p.F, mlp.regions)
    assert np.allclose(z, p.place(x @ up, mlp.hidden)[: p.n], atol=1e-9)
    product, (terms, stride) = mlp.down(Dense("d")), mlp.spread
    z = apply(p, product, [(up.T, mlp.hidden, mlp.spread_out)], p.place(h, mlp.hidden)[: p.n])
    z = tree(z + z.conj() if product.complex else z, stride, terms)
    assert np.allclose(z[: p.shape.width], h @ up.T, atol=1e-9)


def test_gpt2_small_uses_the_published_plaintext_counts() -> None:
    shape = Shape(layers=12, width=768, heads=12, hidden=3072, vocabulary=50257, context=1024)
    p = Packing(shape, 32768, 128)
    assert (p.D, p.t, p.stride, p.m, p.F, p.hF, p.V, p.vocabulary_parts) == (1024, 32, 512, 4, 4096, 64, 32768, 2)
    assert to_heads(Dense("q"), p, halve=False).plaintexts == 32
    assert to_heads(Dense("q"), p, halve=True).plaintexts == 16
    assert from_heads(Dense("o"), p, halve=True).plaintexts == 16
    assert to_hidden(Dense("f"), p, halve=True).plaintexts == 64
    assert from_hidden(Dense("d"), p, halve=True).plaintexts == 64
    head = to_vocabulary(Dense("l"), p, halve=True, pair=True)
    assert (head.plaintexts, len(head.babies), len(head.giants)) == (1024, 32, 32)
    mlp = PeriodicMlp(packing=p, halve=True)
    assert (mlp.regions, mlp.skew, mlp.spread) == (8, 64, (32, 832))
    assert mlp.up(Dense("u")).plaintexts == mlp.down(Dense("d")).plaintexts == 64


@pytest.mark.parametrize(
    ("slots", "context", "words"),
    [(8, 8, "does not fit 8 slots"), (32, 100, "context is 64"), (16, 16, "at most 8"), (24, 4, "power of two")],
)
def test_what_does_not_fit_is_refused_with_the_change_that_helps(slots: int, context: int, words: str) -> None:
    shape = Shape(layers=1, width=16, heads=2, hidden=64, vocabulary=10, context=64)
    with pytest.raises((PlanError, ConfigError), match=words):
        Packing(shape, slots, context)


def test_a_product_is_checked_when_made() -> None:
    with pytest.raises(ConfigError, match="do not combine"):
        LinearMap(weight=Dense("x"), babies=(0,), giants=(0,), half=2, pair=True)
    with pytest.raises(ConfigError, match="at least one rotation"):
        LinearMap(weight=Dense("x"), babies=(), giants=(0,))
    p = LinearMap(weight=Dense("x"), babies=(0, 1), giants=(0, 4), half=2)
    assert LinearMap.from_json(p.as_json()) == p
    assert p.rotations == (1, 4)
