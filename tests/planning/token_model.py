# SPDX-License-Identifier: Apache-2.0
"""A hand-built graph of one GPT-2-small token: the levels, periods and order of its operations, no data.

It states the circuit the published counts of the HEAT paper belong to, in our packing: one ciphertext a stage, a
residual of period 1024, scalars of period 1 (norms) and 16 (softmax rows), scores of period 2048 at 128 tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from heatfhe.planning.graph import Graph, Node

FULL, WIDE, HIDDEN, SCORES, ROWS, ONE = 32768, 1024, 4096, 2048, 16, 1


@dataclass(frozen=True)
class Counts:
    """Iterations per site; refinement passes per block, each with its count."""

    norm_goldschmidt: Sequence[int]
    norm_newton: Sequence[int]
    init: Sequence[int]
    refine: Sequence[Sequence[int]]


def heat() -> Counts:
    """The paper's counts after HEAT: 75 / 50 / 24 / 79."""
    refine = [[8], *([k] for k in (7, 7, 7, 7, 7, 7, 6, 6, 6, 6, 5))]
    return Counts([3] * 25, [2] * 25, [2] * 12, refine)


def spread(total: int, places: int) -> list[int]:
    """A total spread evenly, the larger shares first."""
    return [total // places + (1 if i < total % places else 0) for i in range(places)]


def calibrated() -> Counts:
    """The paper's calibrated totals 235 / 63 / 105 / 309 over 36 passes, spread evenly."""
    passes = (5, 4, 3, 3, 3, 3, 3, 3, 3, 2, 2, 2)
    refine = iter(spread(309, 36))
    return Counts(spread(235, 25), spread(63, 25), spread(105, 12), [[next(refine) for _ in range(p)] for p in passes])


@dataclass
class Builder:
    """Appends nodes; a value is its index."""

    levels: int
    newton_levels: int = 2
    nodes: list[Node] = field(default_factory=list)

    def input(self, name: str, period: int) -> int:
        self.nodes.append(Node(name=name, operator="input", period=period, fixed=self.levels))
        return len(self.nodes) - 1

    def op(
        self,
        name: str,
        cost: int | Sequence[int],
        *inputs: int,
        period: int,
        parts: int = 1,
        complex: bool = False,
        last: bool = False,
    ) -> int:
        costs = (cost,) * len(inputs) if isinstance(cost, int) else tuple(cost)
        self.nodes.append(
            Node(
                name=name,
                operator=name.split("/")[0],
                inputs=inputs,
                costs=costs,
                period=period,
                parts=parts,
                complex=complex,
                last=last,
            )
        )
        return len(self.nodes) - 1

    def goldschmidt(self, name: str, n: int, d: int, count: int, period: int, *, last: bool) -> int:
        """N and D descend together; the last D is not made."""
        for i in range(count):
            final = i == count - 1
            n, d = (
                self.op(f"{name}/N{i + 1}", 1, n, d, period=period, last=last and final),
                d if final else self.op(f"{name}/D{i + 1}", 1, d, period=period),
            )
        return n

    def newton(self, name: str, z: int, y: int, count: int, *, last: bool) -> int:
        for i in range(count):
            final = last and i == count - 1
            square = self.op(f"{name}/y2.{i}", 1, y, period=ONE)
            if self.newton_levels == 2:
                zy = self.op(f"{name}/zy.{i}", 1, z, y, period=ONE)
                y = self.op(f"{name}/y{i + 1}", 1, y, zy, square, period=ONE, last=final)
            else:
                t = self.op(f"{name}/zy2.{i}", 1, z, square, period=ONE)
                y = self.op(f"{name}/y{i + 1}", 1, y, t, period=ONE, last=final)
        return y

    def norm(self, name: str, x: int, goldschmidt: int, newton: int) -> int:
        """The inverse root of the variance, a scalar."""
        z = self.op(f"{name}/z", 1, x, period=ONE)
        numerator = self.op(f"{name}/num", 2, z, period=ONE)
        seed = self.op(f"{name}/seed", 1, z, period=ONE)
        n = self.op(f"{name}/N0", 1, numerator, seed, period=ONE)
        d = self.op(f"{name}/D0", 1, z, seed, period=ONE)
        y = self.goldschmidt(name, n, d, goldschmidt, ONE, last=newton == 0)
        return self.newton(name, z, y, newton, last=True)

    def reciprocal(self, name: str, s: int, count: int, period: int) -> int:
        seed = self.op(f"{name}/seed", 1, s, period=period)
        d = self.op(f"{name}/D0", 1, s, seed, period=period)
        return self.goldschmidt(name, seed, d, count, period, last=True)


@dataclass(frozen=True)
class Shape:
    """Which circuit: the reference point is the best one."""

    newton_levels: int = 2
    gelu: tuple[int, int, int] = (5, 5, 1)
    variant_b: bool = True
    logits: str = "one"  # "two" real ciphertexts, one "complex" one, or "one" that may even share a bootstrap
    squarings: int = 2
    argmax: bool = True
    scores: int = SCORES


def token(levels: int, counts: Counts, shape: Shape | None = None) -> Graph:
    """The whole token: 12 blocks, final norm, head, argmax and the embedding fed back at the top level."""
    shape = shape or Shape()
    b = Builder(levels, shape.newton_levels)
    x = b.input("x", WIDE)
    for l in range(12):
        x = _block(b, f"h.{l}", x, counts, l, shape)
    r = b.norm("ln_f", x, counts.norm_goldschmidt[24], counts.norm_newton[24])
    xhat = b.op("ln_f/x", 1, x, r, period=WIDE)
    if not shape.argmax:
        b.op("head", 1, xhat, period=FULL, complex=True)
        return Graph(nodes=tuple(b.nodes), required={})
    logits = b.op("head", 1, xhat, period=FULL, **_logits(shape))
    for i, power in enumerate((9, 3, 3, 3, 7)):
        logits = _cutmax_round(b, f"argmax.{i}", logits, power, shape)
    embedding = b.op("embed", 1, logits, period=WIDE)
    return Graph(nodes=tuple(b.nodes), required={embedding: levels})


def _block(b: Builder, name: str, x: int, counts: Counts, l: int, shape: Shape) -> int:
    r = b.norm(f"{name}.ln_1", x, counts.norm_goldschmidt[2 * l], counts.norm_newton[2 * l])
    xhat = b.op(f"{name}.ln_1/x", 1, x, r, period=WIDE)
    q = b.op(f"{name}.attn/q", 2, xhat, period=FULL)
    v = b.op(f"{name}.attn/v", 2, xhat, period=FULL)
    p = b.op(f"{name}.attn/scores", 1, q, period=shape.scores)
    p = b.op(f"{name}.attn/exp", 4, p, period=shape.scores)
    for i in range(shape.squarings):
        p = b.op(f"{name}.attn/exp.{i}", 1, p, period=shape.scores)
    for i, count in enumerate([counts.init[l], *counts.refine[l]]):
        if i:
            p = b.op(f"{name}.attn/p2.{i}", 1, p, period=shape.scores)
        s = b.op(f"{name}.attn/sum.{i}", 0, p, period=ROWS)
        inverse = b.reciprocal(f"{name}.attn/gs.{i}", s, count, ROWS)
        p = b.op(f"{name}.attn/p.{i}", 1, p, inverse, period=shape.scores)
    o = b.op(f"{name}.attn/pv", 1, p, v, period=FULL)
    o = b.op(f"{name}.attn/mask", 1, o, period=FULL)
    o = b.op(f"{name}.attn/proj", 1, o, period=WIDE)
    x = b.op(f"{name}.mid", 0, x, o, period=WIDE)
    if shape.variant_b:
        skew = b.op(f"{name}.mlp/skew", 1, x, period=FULL)
    r = b.norm(f"{name}.ln_2", x, counts.norm_goldschmidt[2 * l + 1], counts.norm_newton[2 * l + 1])
    xhat = b.op(f"{name}.ln_2/x", 1, skew if shape.variant_b else x, r, period=FULL if shape.variant_b else WIDE)
    wide = HIDDEN if shape.variant_b else FULL
    h = b.op(f"{name}.mlp/fc1", 1 if shape.variant_b else 2, xhat, period=wide)
    p1 = b.op(f"{name}.mlp/p1", shape.gelu[0], h, period=wide)
    p2 = b.op(f"{name}.mlp/p2", shape.gelu[1], p1, period=wide)
    g = b.op(f"{name}.mlp/gelu", shape.gelu[2], h, p2, period=wide)
    g = b.op(f"{name}.mlp/fc2", 2 if shape.variant_b else 1, g, period=WIDE)
    return b.op(f"{name}.out", 0, x, g, period=WIDE)


def _logits(shape: Shape) -> dict[str, Any]:
    return {"parts": 2 if shape.logits == "two" else 1, "complex": shape.logits == "complex"}


def _cutmax_round(b: Builder, name: str, x: int, power: int, shape: Shape) -> int:
    x = b.op(f"{name}/centre", 1, x, period=FULL, **_logits(shape))
    z = b.op(f"{name}/variance", 1, x, period=ONE)
    y = b.op(f"{name}/chord", 1, z, period=ONE)
    y = b.newton(name, z, y, 2, last=True)
    x = b.op(f"{name}/scale", 1, x, y, period=FULL, **_logits(shape))
    for i in range((power - 1).bit_length()):
        x = b.op(f"{name}/power.{i}", 1, x, period=FULL, **_logits(shape))
    return x
