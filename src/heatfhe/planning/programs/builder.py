# SPDX-License-Identifier: Apache-2.0
"""What the stages of a packed program share: the recorder, the layouts, the scales, and products with their helpers."""

from __future__ import annotations

from heatfhe.circuit import Circuit
from heatfhe.planning.pack import LinearMap, Packing, PeriodicMlp
from heatfhe.planning.plaintexts import Public
from heatfhe.planning.recorder import Recorder, Traced
from heatfhe.planning.scales import magnitude
from heatfhe.planning.source import PlaintextSource
from heatfhe.planning.vectors import Bias, Diagonal
from heatfhe.planning.weights import Biased
from heatfhe.stages import Linear

ROWS = Public(rows=1.0)


class Builder:
    """A program being recorded: ``r`` collects operations, ``p`` gives sizes, ``mlp`` is set for the MLP's variant B,
    ``tight`` says how large values are carried."""

    def __init__(
        self,
        circuit: Circuit,
        packing: Packing,
        reach: float,
        halve: bool,
        contract: bool,
        mlp: str,
        tight: bool = False,
    ) -> None:
        self.circuit, self.p, self.halve, self.tight = circuit, packing, halve, tight
        self.mlp = PeriodicMlp(packing=packing, halve=halve) if mlp == "B" else None
        self.source = PlaintextSource(circuit, packing, {}, reach, tight=tight)
        self.scales, self.made = self.source.scales, self.source.made
        self.r = Recorder(slots=packing.n, rows=packing.context, source=self.source, contract=contract)

    def bound(self, name: str) -> float:
        """Largest magnitude of a named value."""
        return magnitude(self.circuit, name)

    def linear(self, value: str) -> Linear:
        """The linear stage that writes a value: attentions, activations, gates and residuals swallow the one before."""
        stage = self.made[value]
        assert isinstance(stage, Linear), value
        return stage

    def shifted(self, x: Traced, weight: Biased, times: float = 1.0) -> Traced:
        """x and the bias after a linear map, where there is one."""
        return x + Public.of(Bias(weight)) * times if self.source.adds(weight) else x

    def real_part(self, z: Traced, product: LinearMap) -> Traced:
        """The result of a product with complex plaintexts; 1/2 is in them."""
        if not product.complex:
            return z
        z = z + z.conjugate()
        z.facts.complex = False
        return z

    def halved(self, x: Traced, product: LinearMap) -> Traced:
        """x + i rot_half(x), where the product wants it."""
        return x + x.rotate(product.half).times_i() if product.half else x

    def doubled(self, x: Traced, by: int, product: LinearMap) -> Traced:
        """y + i rot_half(y) of y = x + rot_by(x): both rotations, and their sum, share one decomposition of x."""
        if not product.half:
            return self.halved(x + x.rotate(by), product)
        near, far, both = self.r.rotate_many(x, [by, product.half, by + product.half])
        return (x + near) + (far + both).times_i()

    def replicated(self, x: Traced, width: int, copies: int, mask: Public) -> Traced:
        """From a value that is right in copy 0 only to the same in every copy; the mask costs the level."""
        return self.copied(x * mask, width, copies)

    def copied(self, x: Traced, width: int, copies: int) -> Traced:
        """From a value that is zero in all copies but the first to the same in every copy."""
        for k in range(copies.bit_length() - 1):
            x = x + x.rotate(-(width << k))
        return x

    def diagonals(self, babies: dict[int, Traced], product: LinearMap) -> Traced:
        """A product over rotations that several products share; complex where its plaintexts are."""
        total: Traced | None = None
        self.r.products[product.weight] = product
        for giant in product.giants:
            pairs = [(babies[b], Public.of(Diagonal(product.weight, giant, b))) for b in product.babies]
            term = self.r.plain_sum(pairs)
            term = term.rotate(giant) if giant else term
            total = term if total is None else total + term
        assert total is not None
        total.facts.complex, total.facts.period = product.complex, self.p.n
        return total
