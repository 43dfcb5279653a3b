# SPDX-License-Identifier: Apache-2.0
"""What every operation but a refresh adds to a slot: roundings of divisions, errors of keys, encodings, encryption.

A refresh's own error is ``BootstrapNoise``'s or a measured table's. This one is a twentieth of it on ``native-16-r40``,
but it does not shrink with the value it meets: a number as small as a rounding is lost in one product.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from heatfhe.ckks import Params, native_set
from heatfhe.engine.arrays import Arrays
from heatfhe.errors import ConfigError

SIGMA = 3.19  # of an encryption's and a key's error, in integers: what security claims are computed for


@dataclass(kw_only=True)
class OperationNoise:
    """Errors of products, rotations, plaintexts and drops, as standard deviations of the real part of a slot.

    An operation divides both polynomials of a ciphertext and rounds every coefficient, which leaves uniform errors
    r_0 + r_1 s of variance 1/12 each. Seen in slot j that is r_0 + r_1 s_j: Gaussian, of a size that goes with the
    secret's value there. A secret of h ones and minus ones has |s_j|^2 = h E, E exponentially distributed, and it stays
    the same for all operations; so it is drawn once, and some slots are noisier than others throughout.

    ``strengths`` multiplies all of it, one number for each row of the values' first axis; with one number there are no
    rows. Real values keep real errors: the imaginary part that a ciphertext also has is left out, and so are the errors
    of keys inside linear maps, below the last rounding there.

    Domain  ternary secrets; scales as the parameters say, of all levels alike.
    Bound   measured over predicted 0.94 to 1.06 at N = 2^11 and 2^13 (tests/engine/test_rounding.py). Encodings err
            anew at every use, as vectors that fill their ring do, which is too much for those that repeat.
    Source  Cheon, Kim, Kim, Song, ASIACRYPT 2017, lemmas 1 to 3; hybrid key switching, Han, Ki, CT-RSA 2020, section 3;
            spread over slots, docs/security-native.md.
    """

    params: Params
    seed: int = 0
    strengths: tuple[float, ...] = (1.0,)
    _drawn: Any = field(default=None, init=False, repr=False)
    _weights: Any = field(default=None, init=False, repr=False)
    _rows: Any = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        if not self.strengths or not all(0 <= s < math.inf for s in self.strengths):
            raise ConfigError(f"strengths of noise are numbers of zero or more, got {self.strengths}")

    # -- standard deviations ------------------------------------------------------------------------------------------

    @property
    def weight(self) -> float:
        """How many coefficients of the secret are not zero; of a uniform ternary one two thirds are not."""
        return float(self.params.secret_weight or 2 * self.params.ring_dimension / 3)

    @property
    def unit(self) -> float:
        """In a slot, what an error of one in every coefficient makes: N / 2 of them add up in its real part."""
        return math.sqrt(self.params.ring_dimension / 2) / float(2.0**self.params.scale_bits)

    @property
    def rounding(self) -> float:
        """A division with its rounding: a rescale, a drop, the end of a key switch; averaged over the slots."""
        return self.unit * math.sqrt((self.weight + 1) / 12)

    @property
    def encoding(self) -> float:
        """A plaintext's coefficients rounded to integers."""
        return self.unit / math.sqrt(12)

    @property
    def fresh(self) -> float:
        """An encryption: the plaintext's rounding, and an error in every coefficient."""
        return self.unit * math.hypot(SIGMA, 1 / math.sqrt(12))

    @cached_property
    def keys(self) -> tuple[float, ...]:
        """The error a key leaves after the division by P, by level: digits, uniform to D_i, times its errors.

        Other engines than ours choose their own digits, with D_i at most P; theirs are left out.
        """
        if self.params.engine != "native":
            return (0.0,) * (self.params.levels + 1)
        native = native_set(self.params)
        chain, out = native.chain, []
        for level in range(native.floor, native.floor + self.params.levels + 1):
            bits = [math.fsum(math.log2(chain.moduli[i]) for i in digit) - chain.log_p for digit in chain.digits(level)]
            share = math.sqrt(math.fsum(4.0**b for b in bits) * self.params.ring_dimension / 12)
            out.append(self.unit * SIGMA * share)
        return tuple(out)

    # -- errors -------------------------------------------------------------------------------------------------------

    def divided(self, arrays: Arrays, slots: Any, level: int, coded: Any = 0.0) -> Any:
        """A product that is rescaled from a level, or a dropped value: the rounding, and what its plaintexts erred by.

        ``coded`` is the sum of the squares of what encoded plaintexts were multiplied by, in every slot. A key's error
        comes before the division by the scale, so that nothing is left of it.
        """
        key = self.keys[level] / 2.0**self.params.scale_bits
        return self._added(arrays, slots, math.hypot(self.rounding, key), coded)

    def switched(self, arrays: Arrays, slots: Any, level: int) -> Any:
        """A rotated or conjugated value: the error of its key, and the rounding of the division by P."""
        return self._added(arrays, slots, math.hypot(self.rounding, self.keys[level]))

    def encoded(self, arrays: Arrays, slots: Any) -> Any:
        """A sum with a plaintext."""
        return self._added(arrays, slots, self.encoding, spread=False)

    def encrypted(self, arrays: Arrays, slots: Any) -> Any:
        """A value as a client sends it."""
        return self._added(arrays, slots, self.fresh, spread=False)

    def scalar(self, x: Any) -> Any:
        """What a factor x to one number counts in ``coded``: a single coefficient is rounded, and seen in all slots."""
        return self.vector(x) * (2 / self.params.ring_dimension)

    @staticmethod
    def vector(x: Any) -> Any:
        """What a factor x to an encoded vector counts in ``coded``."""
        return x.real * x.real + x.imag * x.imag if x.dtype.kind == "c" else x * x

    def _added(self, arrays: Arrays, slots: Any, sigma: float, coded: Any = 0.0, *, spread: bool = True) -> Any:
        if self._drawn is None:
            self._begin(arrays)
        if len(self.strengths) > 1 and (len(slots.shape) < 2 or slots.shape[0] != len(self.strengths)):
            raise ConfigError(f"values of shape {slots.shape} do not have the {len(self.strengths)} rows of this noise")
        error = arrays.normal(self._drawn, slots.shape)
        if slots.dtype.kind == "c":
            error = error + arrays.normal(self._drawn, slots.shape) * 1j
        size = self._weights * sigma if spread else sigma
        if not isinstance(coded, float):
            size = arrays.xp.sqrt(coded * self.encoding**2 + size * size)
        error = error * size
        rows = self.strengths[0]
        if len(self.strengths) > 1:
            rows = self._rows.reshape(-1, *(1,) * (len(slots.shape) - 1))
        return slots + error * rows

    def _begin(self, arrays: Arrays) -> None:
        h = self.weight
        secret = np.random.default_rng(self.seed).standard_exponential(self.params.slots)
        self._weights = arrays.put(np.sqrt((1 + h * secret) / (1 + h)))
        self._rows = arrays.put(np.array(self.strengths))
        self._drawn = arrays.generator((self.seed, 1))
