# SPDX-License-Identifier: Apache-2.0
"""The OpenFHE engine: every instruction of the protocol on openfhe 1.6, with levels that are exactly the plan's.

Form of a value. FLEXIBLEAUTO gives the best precision but rescales when it pleases; here every value is kept in one
canonical form, scale degree 1 at the canonical scale of its level, by rescaling right after each product (``Compress``
does what ``Rescale`` silently does not in that mode). So operands never differ in degree, and levels are predictable.

Free products. A plaintext of k divided by the scale encodes to the exact constant polynomial k, and i divided by the
scale to the monomial X^(N/2); multiplying by it and setting degree and scale back costs no level and no precision.

Bootstraps. OpenFHE's own first step multiplies by target / scale^2, so a scale set too large by sqrt(g) divides the
value by g at no cost. We use it for the bound, for the 1/2 of z + conj(z), and for the correction against the sine's
cubic error; the integer g is multiplied back by a free product.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from heatfhe.ckks import Params
from heatfhe.engine.encodings import Encodings
from heatfhe.engine.openfhe.context import BASE_CORRECTION, Ciphertext, Context, refusals, set_openmp_threads
from heatfhe.engine.openfhe.keys import load_keys
from heatfhe.engine.protocol import KeyRequest, KeySource, Plain
from heatfhe.errors import ConfigError, EngineError, MissingKeyError, OutOfLevelsError
from heatfhe.planning import LinearMap, Vector, bootstrap_correction

R = TypeVar("R")
S = TypeVar("S")


class OpenFHEEngine:
    """Executes plan steps on OpenFHE ciphertexts, from public things alone. One tenant per process.

    ``threads`` Python threads share independent work inside linear maps and rotations (OpenFHE releases the interpreter
    lock), each with one OpenMP thread; bootstraps use that many OpenMP threads instead. ``cache_bytes`` bounds the
    memory of encoded plaintexts.
    """

    def __init__(self, request: KeyRequest, keys: KeySource, *, threads: int = 1, cache_bytes: int = 1 << 30) -> None:
        if threads < 1 or cache_bytes < 0:
            raise ConfigError(f"threads must be at least 1 and cache_bytes at least 0, got {threads} and {cache_bytes}")
        self._context = Context(request.params)
        self._context.check_request(request)
        self._request = request
        self._cc = self._context.cc
        self._threads = threads
        module = self._context.openfhe
        set_openmp_threads(module, threads)
        self._pool = (
            ThreadPoolExecutor(threads, "openfhe", initializer=set_openmp_threads, initargs=(module, 1))
            if threads > 1
            else None
        )
        self._encodings = Encodings(cache_bytes)
        self._rotations = frozenset(self._context.rotation(r) for r in request.rotations)
        self._tag = load_keys(self._context, request, keys)
        for period in request.bootstrap_periods:
            self._context.set_up_bootstrap(period, tables=True)

    @property
    def params(self) -> Params:
        """The parameter set."""
        return self._request.params

    # ----- helpers -----

    def _each(self, function: Callable[[S], R], items: Sequence[S]) -> list[R]:
        """The function of every item, over threads where there are several."""
        if self._pool is None or len(items) < 2:
            return [function(item) for item in items]
        return list(self._pool.map(function, items))

    def _equal_levels(self, step: str, a: Ciphertext, b: Ciphertext) -> int:
        x, y = self._context.check_canonical(a, step), self._context.check_canonical(b, step)
        if x != y:
            raise EngineError(f"{step}: operands are at levels {x} and {y}; drop the higher one to {min(x, y)} first")
        return x

    def _spendable(self, step: str, a: Ciphertext) -> int:
        level = self._context.check_canonical(a, step)
        if level < 1:
            raise OutOfLevelsError(f"{step} needs 1 level, its operand has {level}; bootstrap it before")
        return level

    def _rescale(self, a: Ciphertext, level: int) -> Ciphertext:
        """A product of degree two at this level, brought to canonical form one level below."""
        out = self._cc.Compress(a, self._context.limbs(level - 1))
        out.SetScalingFactor(self._context.scale(level - 1))
        return out

    def _plain(self, p: Plain, level: int) -> Any:
        """What OpenFHE multiplies or adds: an encoded vector, or the number itself."""
        if isinstance(p, Vector):
            size = 8 * self.params.ring_dimension * (self._context.limbs(level) + 1)
            if not p.keep:
                return self._context.encode(p.make(), level)
            return self._encodings.get(
                (p.key, level), size, lambda _: self._context.encode(p.make(), level), spare=p.spare
            )
        number = complex(p)
        if not (math.isfinite(number.real) and math.isfinite(number.imag)):
            raise EngineError("a plaintext number is not finite; look for a division by zero where it is made")
        return number.real if number.imag == 0.0 else number

    def _free_product(self, a: Ciphertext, k: complex) -> Ciphertext:
        """Product with a small Gaussian integer along one axis: k or ki, exactly, at the same level."""
        level, scale = self._context.level(a), self._context.scale(self._context.level(a))
        size = 8 * self.params.ring_dimension * (self._context.limbs(level) + 1)
        plain = self._encodings.get(
            (("free", k), level), size, lambda _: self._context.encode(complex(k.real / scale, k.imag / scale), level)
        )
        out = self._cc.EvalMult(a, plain)
        out.SetNoiseScaleDeg(1)
        out.SetScalingFactor(scale)
        return out

    # ----- the protocol -----

    def level(self, a: Ciphertext) -> int:
        return self._context.level(a)

    def add(self, a: Ciphertext, b: Ciphertext) -> Ciphertext:
        self._equal_levels("add", a, b)
        with refusals("add"):
            return self._cc.EvalAdd(a, b)

    def sub(self, a: Ciphertext, b: Ciphertext) -> Ciphertext:
        self._equal_levels("sub", a, b)
        with refusals("subtract"):
            return self._cc.EvalSub(a, b)

    def negate(self, a: Ciphertext) -> Ciphertext:
        with refusals("negate"):
            return self._cc.EvalNegate(a)

    def add_plain(self, a: Ciphertext, p: Plain) -> Ciphertext:
        level = self._context.check_canonical(a, "add_plain")
        with refusals("add a plaintext"):
            return self._cc.EvalAdd(a, self._plain(p, level))

    def times(self, a: Ciphertext, k: int) -> Ciphertext:
        """Product with a small integer; free. Exact below 2^50 in magnitude."""
        if int(k) != k or abs(k) >= 1 << 50:
            raise EngineError(f"times takes an integer below 2^50 in magnitude, got {k!r}; use multiply_plain")
        self._context.check_canonical(a, "times")
        with refusals(f"multiply by {k}"):
            if k == 1:
                return a
            return self._cc.EvalAdd(a, a) if k == 2 else self._free_product(a, complex(k))

    def multiply(self, a: Ciphertext, b: Ciphertext) -> Ciphertext:
        self._equal_levels("multiply", a, b)
        level = self._spendable("multiply", a)
        with refusals("multiply"):
            return self._rescale(self._cc.EvalMult(a, b), level)

    def multiply_sum(self, pairs: Sequence[tuple[Ciphertext, Ciphertext]]) -> Ciphertext:
        level = self._sum_level("multiply_sum", [x for pair in pairs for x in pair])
        with refusals("sum products"):
            products = self._each(lambda pair: self._cc.EvalMultNoRelin(*pair), pairs)
            return self._rescale(self._cc.Relinearize(self._sum(products)), level)

    def multiply_plain(self, a: Ciphertext, p: Plain) -> Ciphertext:
        level = self._spendable("multiply_plain", a)
        with refusals("multiply by a plaintext"):
            return self._rescale(self._cc.EvalMult(a, self._plain(p, level)), level)

    def multiply_plain_sum(self, pairs: Sequence[tuple[Ciphertext, Plain]]) -> Ciphertext:
        level = self._sum_level("multiply_plain_sum", [a for a, _ in pairs])
        with refusals("sum plaintext products"):
            products = self._each(lambda pair: self._cc.EvalMult(pair[0], self._plain(pair[1], level)), pairs)
            return self._rescale(self._sum(products), level)

    def _sum_level(self, step: str, operands: Sequence[Ciphertext]) -> int:
        if not operands:
            raise EngineError(f"{step} of no operands has no level; leave the step out of the plan")
        for other in operands[1:]:
            self._equal_levels(step, operands[0], other)
        return self._spendable(step, operands[0])

    def _sum(self, terms: Sequence[Ciphertext]) -> Ciphertext:
        """Their sum; the first term, made here, is added to in place."""
        total = terms[0]
        for term in terms[1:]:
            self._cc.EvalAddInPlace(total, term)
        return total

    def linear(self, a: Ciphertext, m: LinearMap) -> Ciphertext:
        """A plaintext linear map, one level: hoisted baby steps, giant steps summed before their one modulus switch."""
        level = self._spendable(f"linear {m.weight.key}", a)
        babies = dict(zip(m.babies, self.rotate_many(a, m.babies), strict=True))

        rows: dict[int, list[tuple[int, Vector]]] = {}
        for by in m.giants:
            rows.setdefault(self._context.rotation(by), []).extend((b, m.vector(by, b)) for b in m.babies)
        for shift in rows.keys() - {0}:
            self._need_rotation(shift)

        def giant(item: tuple[int, list[tuple[int, Vector]]]) -> Ciphertext:
            shift, row = item
            inner = self._sum([self._cc.EvalMult(babies[b], self._plain(p, level)) for b, p in row])
            if shift == 0:
                return inner
            digits = self._cc.EvalFastRotationPrecompute(inner)
            return self._cc.EvalFastRotationExt(inner, shift, digits, True)

        with refusals(f"apply the linear map {m.weight.key}"):
            turned = dict(zip(rows, self._each(giant, list(rows.items())), strict=True))
            parts = [turned.pop(0)] if 0 in turned else []
            if turned:
                parts.append(self._cc.KeySwitchDown(self._sum(list(turned.values()))))
            return self._rescale(self._sum(parts), level)

    def _rotated(self, a: Ciphertext, by: int) -> Ciphertext:
        shift = self._context.rotation(by)
        if shift == 0:
            return a
        self._need_rotation(shift)
        return self._cc.EvalRotate(a, shift)

    def _need_rotation(self, shift: int) -> None:
        if shift not in self._rotations:
            raise MissingKeyError(f"rotation by {shift} is not among the plan's keys; make keys for this plan")

    def rotate(self, a: Ciphertext, by: int) -> Ciphertext:
        self._context.check_canonical(a, "rotate")
        with refusals(f"rotate by {by}"):
            return self._rotated(a, by)

    def rotate_many(self, a: Ciphertext, by: Sequence[int]) -> list[Ciphertext]:
        self._context.check_canonical(a, "rotate_many")
        shifts = [self._context.rotation(b) for b in by]
        distinct = sorted(set(shifts) - {0})
        for shift in distinct:
            self._need_rotation(shift)
        with refusals("rotate"):
            if len(distinct) < 2:
                return [self._rotated(a, shift) for shift in shifts]
            digits = self._cc.EvalFastRotationPrecompute(a)
            order = 2 * self.params.ring_dimension
            turned = self._each(lambda s: self._cc.EvalFastRotation(a, s, order, digits), distinct)
        found = {0: a, **dict(zip(distinct, turned, strict=True))}
        return [found[shift] for shift in shifts]

    def add_rotations(self, a: Ciphertext, by: Sequence[int]) -> Ciphertext:
        for turned in self.rotate_many(a, by):
            a = self.add(a, turned)
        return a

    def conjugate(self, a: Ciphertext) -> Ciphertext:
        if not self._request.conjugation:
            raise MissingKeyError("the conjugation key is not among the plan's keys; make keys for this plan")
        self._context.check_canonical(a, "conjugate")
        return self._conjugated(a)

    def _conjugated(self, a: Ciphertext) -> Ciphertext:
        with refusals("conjugate"):
            return self._cc.EvalAutomorphism(
                a, self._context.conjugation_index, self._cc.GetEvalAutomorphismKeyMap(self._tag)
            )

    def times_i(self, a: Ciphertext) -> Ciphertext:
        """Product with the imaginary unit; free."""
        self._context.check_canonical(a, "times_i")
        with refusals("multiply by i"):
            return self._free_product(a, 1j)

    def drop(self, a: Ciphertext, level: int) -> Ciphertext:
        """The same value at a lower level.

        Bound   relative error |s(level) / s(now) - 1|, the spread of canonical scales: below 2^-30 in every preset,
                far under a bootstrap's noise.
        """
        now = self._context.check_canonical(a, "drop")
        if not 0 <= level <= now:
            raise OutOfLevelsError(f"drop to level {level} from level {now}; a drop goes down, to 0 at the lowest")
        if level == now:
            return a
        with refusals(f"drop to level {level}"):
            out = self._cc.Compress(a, self._context.limbs(level))
            out.SetScalingFactor(self._context.scale(level))
        return out

    def bootstrap(self, a: Ciphertext, *, period: int, bound: float) -> Ciphertext:
        """Refresh to params.levels. The imaginary part, noise alone, is removed on the way."""
        z, gain = self._refreshed(a, period, bound)
        with refusals("finish a bootstrap"):
            return self.times(self._cc.EvalAdd(z, self._conjugated(z)), gain)

    def bootstrap_pair(
        self, a: Ciphertext, b: Ciphertext, *, period: int, bound: float
    ) -> tuple[Ciphertext, Ciphertext]:
        """Refresh two real values in one complex bootstrap, both to params.levels."""
        with refusals("pack a pair"):
            packed = self._cc.EvalAdd(self.drop(a, 0), self._free_product(self.drop(b, 0), 1j))
        z, gain = self._refreshed(packed, period, bound)
        with refusals("finish a bootstrap"):
            w = self._conjugated(z)
            real = self.times(self._cc.EvalAdd(z, w), gain)
            return real, self._free_product(self._cc.EvalSub(z, w), complex(0, -gain))

    def _refreshed(self, a: Ciphertext, period: int, bound: float) -> tuple[Ciphertext, int]:
        """A bootstrap of a / (2 gain), and the integer gain."""
        if period not in self._request.bootstrap_periods:
            raise MissingKeyError(
                f"bootstraps of period {period} are not among the plan's keys {self._request.bootstrap_periods}"
            )
        if not (math.isfinite(bound) and bound > 0):
            raise EngineError(f"a bootstrap needs a positive bound on its input, got {bound!r}")
        slots = self._context.bootstrap_slots(period)
        ours = bootstrap_correction(self.params, slots) - BASE_CORRECTION
        gain = max(1, math.ceil(bound * 2.0 ** (ours - 1)))
        levels = self.params.levels
        low = self.drop(a, 0)
        if low is a:
            low = a.Clone()
        low.SetScalingFactor(self._context.scale(0) * math.sqrt(2.0 * gain))
        low.SetSlots(slots)
        set_openmp_threads(self._context.openfhe, self._threads)
        with refusals("bootstrap"):
            high = self._cc.EvalBootstrap(low)
            left = self._context.level(high) - int(high.GetNoiseScaleDeg()) + 1
            if left < levels:
                raise EngineError(
                    f"a bootstrap left {left} levels, the plan counts on {levels}; this OpenFHE is another release "
                    "than the set was made for"
                )
            out = self._cc.Compress(high, self._context.limbs(levels))
        out.SetScalingFactor(self._context.scale(levels))
        out.SetSlots(self._context.slots)
        self._context.check_canonical(out, "bootstrap")
        return out, gain

    @property
    def records(self) -> bool:
        """Nothing is recorded."""
        return False

    def replay(
        self, name: Hashable, body: Callable[[Sequence[Ciphertext]], Sequence[Ciphertext]], values: Sequence[Ciphertext]
    ) -> Sequence[Ciphertext]:
        return body(values)

    def synchronize(self) -> None:
        """Everything is done when a method returns."""

    def dump(self, a: Ciphertext) -> bytes:
        self._context.check_canonical(a, "dump")
        with refusals("write a ciphertext"):
            return self._context.dump(a)

    def parse(self, blob: bytes) -> Ciphertext:
        """Inverse of dump; raises WireError before OpenFHE sees a byte of what is wrong."""
        return self._context.parse(blob, self._tag)
