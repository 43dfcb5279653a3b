# SPDX-License-Identifier: Apache-2.0
"""The native engine: plan steps on our own CKKS, from public things alone."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from heatfhe.ckks import (
    Ciphertext,
    EncodedMap,
    Evaluator,
    KeyTable,
    Params,
    Ring,
    apply_map,
    encode_map,
    encode_matrices,
    key_ids,
    native_set,
)
from heatfhe.ckks.bootstrapping import Bootstrapper, check_period
from heatfhe.ckks.kernels import Words, load_kernels
from heatfhe.engine.encodings import Encodings
from heatfhe.engine.protocol import KeyRequest, KeySource, Plain, check_rotation
from heatfhe.errors import ConfigError, EngineError, MissingKeyError, OutOfLevelsError
from heatfhe.planning import LinearMap, Vector

DEFAULT_CACHE = 2 << 30
PASSING = 256  # encodings of one position that are kept for the layers to share


class NativeEngine:
    """Executes plan steps on ciphertexts of our own CKKS. Values always have the canonical scale of their level.

    ``device`` is ``cpu`` (compiled, on ``threads``) or ``reference`` (numpy, slow, the definition). ``cache_bytes``
    bounds the memory of encoded plaintexts; what does not fit is encoded again each time.
    """

    def __init__(
        self,
        request: KeyRequest,
        keys: KeySource,
        *,
        device: str = "cpu",
        threads: int = 1,
        cache_bytes: int = DEFAULT_CACHE,
    ) -> None:
        native = native_set(request.params)
        chain = native.chain
        kernels = load_kernels(device, chain.ring_dimension, chain.moduli, threads=threads)
        self._request = request
        self._ring = Ring(chain, kernels)
        self._floor = native.floor
        self._archive = native.archive(kernels)
        slots = request.params.slots
        self._rotations = request.reach(slots)
        self._periods = {check_period(p, slots) for p in request.bootstrap_periods}
        table = KeyTable(chain, kernels)
        wanted = key_ids(
            native, request.rotations, request.conjugation, request.bootstrap_periods, request.rotation_levels
        )
        missing = sorted({k.name for k in wanted} - set(keys.names()))
        if missing:
            raise MissingKeyError(
                f"the key set lacks {len(missing)} of {len(wanted)} keys, first {missing[0]}; upload them again"
            )
        for key in wanted:
            table.add(self._archive.parse_key(keys.read(key.name), key))
        self._keys = table
        self._e = Evaluator(self._ring, table, floor=native.floor)
        self._bootstrapper = Bootstrapper(self._e, native.bootstrap)
        self._encodings = Encodings(cache_bytes)
        self._passing: dict[tuple[str, Hashable, int], Words] = {}
        self._last: tuple[Hashable, EncodedMap] | None = None  # the map that was not kept: its blocks come in a row
        self._made = 0  # uses of encodings that do not stay
        self._forms: dict[Hashable, list[tuple[int, float]]] = {}
        self._fluid: set[Hashable] = set()

    @property
    def params(self) -> Params:
        """The parameter set."""
        return self._request.params

    @property
    def memory(self) -> dict[str, int]:
        """Bytes held, by what they are for."""
        return {"keys": self._keys.memory, "bootstrap": self._bootstrapper.memory, "encodings": self._encodings.used}

    @property
    def device_name(self) -> str:
        """What the kernels run on."""
        return self._ring.kernels.device_name

    def level(self, a: Ciphertext) -> int:
        """Rescalings left; those of SlotsToCoeffs are not counted."""
        return a.level - self._floor

    # -- sums ---------------------------------------------------------------------------------------------------------

    def add(self, a: Ciphertext, b: Ciphertext) -> Ciphertext:
        return self._e.add(a, b)

    def sub(self, a: Ciphertext, b: Ciphertext) -> Ciphertext:
        return self._e.sub(a, b)

    def negate(self, a: Ciphertext) -> Ciphertext:
        return self._e.negate(a)

    def add_plain(self, a: Ciphertext, p: Plain) -> Ciphertext:
        if isinstance(p, Vector):
            rows = self._ring.rows(a.level)
            words = self._encoded(
                p, "add", a.level, len(rows), lambda: self._ring.kernels.encode(p.make(), a.scale, rows)
            )
            return self._e.add_polynomial(a, words)
        if isinstance(p, complex) and p.imag != 0.0:
            return self.add_plain(a, constant_vector(p))
        return self._e.add_constant(a, float(p.real))

    def times(self, a: Ciphertext, k: int) -> Ciphertext:
        return self._e.times_integer(a, int(k))

    # -- products -----------------------------------------------------------------------------------------------------

    def multiply(self, a: Ciphertext, b: Ciphertext) -> Ciphertext:
        return self._e.multiply(a, b)

    def multiply_sum(self, pairs: Sequence[tuple[Ciphertext, Ciphertext]]) -> Ciphertext:
        return self._e.multiply_sum(pairs)

    def multiply_plain(self, a: Ciphertext, p: Plain) -> Ciphertext:
        return self.multiply_plain_sum([(a, p)])

    def multiply_plain_sum(self, pairs: Sequence[tuple[Ciphertext, Plain]]) -> Ciphertext:
        if not pairs:
            raise EngineError("multiply_plain_sum: needs at least one pair")
        level = pairs[0][0].level
        if any(a.level != level for a, _ in pairs):
            raise EngineError(
                f"multiply_plain_sum: operands at levels {sorted({self.level(a) for a, _ in pairs})}; drop them to one"
            )
        self._need_level(pairs[0][0], "multiply_plain")
        ring, rows, scale = self._ring, self._ring.rows(level), self._e.plain_scale(level)
        products: list[tuple[Words, Words]] = []
        terms: list[tuple[Words, int]] = []
        for a, p in pairs:
            if isinstance(p, Vector) or (isinstance(p, complex) and p.imag != 0.0):
                products.append((a.data, self._factor(p, level)))
            else:
                terms.append((a.data, round(Fraction(float(p.real)) * Fraction(scale))))
        now = pairs[0][0].scale * scale
        if len(pairs) == len(terms) == 1:
            return self._e.rescale(Ciphertext(level, now, terms[0][0]), factor=terms[0][1])
        total = ring.kernels.product_sum(products, rows) if products else None
        if terms:
            total = ring.kernels.combine([(x, ring.constant(k, rows)) for x, k in terms], rows, total)
        return self._e.rescale(Ciphertext(level, now, total))

    def linear(self, a: Ciphertext, m: LinearMap) -> Ciphertext:
        self._need_level(a, f"linear {m.weight.key}")
        for rotation in m.rotations:
            self._need_rotation(a, rotation)
        return apply_map(self._e, a, self._map(m, a.level))

    # -- slots ---------------------------------------------------------------------------------------------------------

    def rotate(self, a: Ciphertext, by: int) -> Ciphertext:
        return self.rotate_many(a, [by])[0]

    def rotate_many(self, a: Ciphertext, by: Sequence[int]) -> list[Ciphertext]:
        for rotation in by:
            self._need_rotation(a, rotation)
        return self._e.rotate_many(a, by)

    def add_rotations(self, a: Ciphertext, by: Sequence[int]) -> Ciphertext:
        for rotation in by:
            self._need_rotation(a, rotation)
        return self._e.add_rotations(a, by)

    def conjugate(self, a: Ciphertext) -> Ciphertext:
        if not (self._request.conjugation or self._periods):
            raise MissingKeyError("conjugation is not among the plan's keys; make keys for this plan")
        return self._e.conjugate(a)

    def times_i(self, a: Ciphertext) -> Ciphertext:
        return self._e.times_i(a)

    def drop(self, a: Ciphertext, level: int) -> Ciphertext:
        if level < 0:
            raise OutOfLevelsError(f"drop: cannot go from level {self.level(a)} to level {level}")
        return self._e.drop(a, level + self._floor)

    # -- bootstraps ----------------------------------------------------------------------------------------------------

    def bootstrap(self, a: Ciphertext, *, period: int, bound: float) -> Ciphertext:
        self._need_period(period)
        return self._bootstrapper.bootstrap_real(a, period=period, bound=bound)

    def bootstrap_pair(
        self, a: Ciphertext, b: Ciphertext, *, period: int, bound: float
    ) -> tuple[Ciphertext, Ciphertext]:
        self._need_period(period)
        return self._bootstrapper.bootstrap_pair(a, b, period=period, bound=bound)

    # -- wire ----------------------------------------------------------------------------------------------------------

    def dump(self, a: Ciphertext) -> bytes:
        return self._archive.dump(a)

    def parse(self, blob: bytes) -> Ciphertext:
        return self._archive.parse(blob)

    # -- recordings ----------------------------------------------------------------------------------------------------

    @property
    def records(self) -> bool:
        """Whether the kernels record."""
        return self._ring.kernels.records

    def replay(
        self, name: Hashable, body: Callable[[Sequence[Ciphertext]], Sequence[Ciphertext]], values: Sequence[Ciphertext]
    ) -> Sequence[Ciphertext]:
        """body(values), recorded by the kernels; what encodes plaintexts each time is never recorded."""
        if name in self._fluid:
            return body(values)
        made = self._made

        def words(*data: Words) -> list[Words]:
            out = body([Ciphertext(v.level, v.scale, d) for v, d in zip(values, data)])
            self._forms[name] = [(c.level, c.scale) for c in out]
            return [c.data for c in out]

        results = self._ring.kernels.replay(name, words, *(v.data for v in values))
        if self._made != made:
            self._fluid.add(name)
        return [Ciphertext(level, scale, d) for (level, scale), d in zip(self._forms[name], results)]

    def synchronize(self) -> None:
        """Wait for the kernels."""
        self._ring.kernels.synchronize()

    def mark(self) -> Any:
        """The moment at which everything asked for so far will be done: a device's own clock, nothing waits for it."""
        return self._ring.kernels.mark()

    def elapsed(self, first: Any, then: Any) -> float:
        """Seconds between two such moments, after synchronize."""
        return self._ring.kernels.elapsed(first, then)

    # -- what steps need -----------------------------------------------------------------------------------------------

    def _need_level(self, a: Ciphertext, what: str) -> None:
        if self.level(a) < 1:
            raise OutOfLevelsError(f"{what}: needs 1 level, has {self.level(a)}; bootstrap the operand first")

    def _need_rotation(self, a: Ciphertext, by: int) -> None:
        check_rotation(self._rotations, by % self.params.slots, self.level(a))

    def _need_period(self, period: int) -> None:
        try:
            known = check_period(period, self.params.slots) in self._periods
        except ConfigError as err:
            raise EngineError(str(err)) from err
        if not known:
            raise MissingKeyError(
                f"bootstrap period {period} is not among the plan's keys; have: {sorted(self._periods)}"
            )

    def _encoded(self, p: Vector, use: str, level: int, limbs: int, make: Callable[[], Words]) -> Words:
        if not p.keep:
            return self._moving(p, use, level, make)
        size = 4 * limbs * self.params.ring_dimension
        self._made += p.spare  # it may leave, so that no recording may hold it

        def count(kept: bool) -> Words:
            self._made += not kept
            return make()

        words: Words = self._encodings.get(((use, p.key), level), size, count, spare=p.spare)
        return words

    def _moving(self, p: Vector, use: str, level: int, make: Callable[[], Words]) -> Words:
        """The encoding of a vector that depends on the position: layers share it, the next position does not."""
        self._made += 1
        if len(self._passing) > PASSING:
            self._passing.clear()
        name = (use, p.key, level)
        if name not in self._passing:
            self._passing[name] = make()
        return self._passing[name]

    def _factor(self, p: Vector | complex, level: int) -> Words:
        rows, scale = self._ring.rows(level), self._e.plain_scale(level)
        if not isinstance(p, Vector):
            p = constant_vector(p)
        return self._encoded(p, "multiply", level, len(rows), lambda: self._ring.plaintext(p.make(), scale, rows))

    def _map(self, m: LinearMap, level: int) -> EncodedMap:
        key = (("map", m.weight), level)
        self._made += m.spare
        last = self._last
        if last is not None and last[0] == key:
            self._made += 1
            return last[1]

        def make(kept: bool) -> EncodedMap:
            self._last = None  # its memory first
            name, scale = ("map", m.weight, level) if kept and not m.spare else None, self._e.plain_scale(level)
            if m.matrices is not None:
                encoded = encode_matrices(self._ring, m.matrices(), m.babies, m.giants, level, scale, name=name)
            else:
                giants = {g: {b: m.vector(g, b).make for b in m.babies} for g in m.giants}
                encoded = encode_map(self._ring, giants, level, scale, name=name)
            if not kept:
                self._made += 1
                self._last = key, encoded
            return encoded

        size = 4 * m.plaintexts * len(self._ring.extended(level)) * self.params.ring_dimension
        found: EncodedMap = self._encodings.get(key, size, make, spare=m.spare)
        return found


def constant_vector(value: complex) -> Vector:
    """A complex constant as a plaintext of one slot."""
    return Vector(f"constant {value!r}", lambda: np.array([value]))
