# SPDX-License-Identifier: Apache-2.0
"""What the stages of a packed step share: the recorder, the layouts, the scales, and products with their helpers."""

from __future__ import annotations

from heatfhe.circuit import Activation, Circuit, Linear
from heatfhe.planning.pack import Packing, PeriodicMlp, Product
from heatfhe.planning.programs.scales import magnitude, scales
from heatfhe.planning.public import Public
from heatfhe.planning.recorder import Recorder, Traced

ROWS = Public.named("rows")


class Builder:
    """A step being recorded: ``r`` collects operations, ``p`` gives sizes, ``mlp`` is set for the MLP's variant B."""

    def __init__(
        self, circuit: Circuit, packing: Packing, window: float, halve: bool, contract: bool, mlp: str
    ) -> None:
        self.circuit, self.p, self.halve = circuit, packing, halve
        self.mlp = PeriodicMlp(packing=packing, halve=halve) if mlp == "B" else None
        self.scales = scales(circuit, window)
        p = packing
        periods = {"causal": p.m * p.stride, "idle": p.Hp, "position": p.D, "words": p.V}
        split = {"append.k": p.m, "append.v": p.m}
        split |= dict.fromkeys(("words", "bias:head", "bias:centred"), p.vocabulary_parts)
        for stage in circuit.stages:
            if isinstance(stage, Activation):
                split[f"bias:{stage.name}.c_fc"] = p.hidden_parts
            elif isinstance(stage, Linear) and stage.residual:
                periods[f"bias:{stage.name}"] = p.D
            elif isinstance(stage, Linear):
                periods[f"bias:{stage.name}~"] = p.F
        full = dict.fromkeys(("first", "first.hidden", "append.k", "append.v", "low"), p.n)
        full |= {f"skew.{a}": p.n for a in range(p.n // p.F)}
        self.r = Recorder(slots=p.n, rows=p.context, periods={**full, **periods}, split=split, contract=contract)

    def bound(self, name: str) -> float:
        """Largest magnitude of a named value."""
        return magnitude(self.circuit, name)

    def real_part(self, z: Traced, product: Product) -> Traced:
        """The result of a product with complex plaintexts; 1/2 is in them."""
        if not product.complex:
            return z
        z = z + z.conjugate()
        z.facts.complex = False
        return z

    def halved(self, x: Traced, product: Product) -> Traced:
        """x + i rot_half(x), where the product wants it."""
        return x + x.rotate(product.half).times_i() if product.half else x

    def doubled(self, x: Traced, by: int, product: Product) -> Traced:
        """y + i rot_half(y) of y = x + rot_by(x): both rotations, and their sum, share one decomposition of x."""
        if not product.half:
            return self.halved(x + x.rotate(by), product)
        near, far, both = self.r.rotate_many(x, [by, product.half, by + product.half])
        return (x + near) + (far + both).times_i()

    def replicated(self, x: Traced, width: int, copies: int, mask: Public) -> Traced:
        """From a value that is right in copy 0 only to the same in every copy; the mask costs the level."""
        x = x * mask
        for k in range(copies.bit_length() - 1):
            x = x + x.rotate(-(width << k))
        return x

    def diagonals(self, babies: dict[int, Traced], product: Product) -> Traced:
        """A product over rotations that several products share; complex where its plaintexts are."""
        total: Traced | None = None
        self.r.products[product.key] = product
        for giant in product.giants:
            pairs = [(babies[b], Public.named(f"map:{product.key}:{giant}:{b}")) for b in product.babies]
            term = self.r.plain_sum(pairs)
            term = term.rotate(giant) if giant else term
            total = term if total is None else total + term
        assert total is not None
        total.facts.complex, total.facts.period = product.complex, self.p.n
        return total
