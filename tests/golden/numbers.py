# SPDX-License-Identifier: Apache-2.0
"""The native engine's numbers: digests of wire forms after every operation, on seeded keys and given residues.

Everything under ``exact`` is made of integers, or of plaintexts whose coefficients are far from a rounding boundary:
no processor or library may change it. ``rounded`` depends on the last bits of encoded matrices, which differ between
processors: it holds where ``arithmetic()`` gives the digest stored beside it.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heatfhe.ckks.archive import CIPHERTEXT, Archive, seal
from heatfhe.ckks.encoding import Encoder
from heatfhe.ckks.kernels import load_kernels
from heatfhe.ckks.keyset import key_ids
from heatfhe.ckks.polynomial import ChebyshevEvaluator
from heatfhe.ckks.presets import native_set
from heatfhe.ckks.ring import Ciphertext, Ring
from heatfhe.ckks.secret import KeyMaker, make_secret
from heatfhe.engine import KeyRequest, LinearMap, MemoryKeys, Vector
from heatfhe.engine.native import NativeEngine
from heatfhe.planning import preset
from tests.ckks.seeded import Scheme, SeededSource, digest, random_words
from tests.engine.maps import linear_map
from tests.golden.first_format import as_version_1

PRESET = "insecure-native-11"
ROTATIONS = (1, 2, 3, 5, 8, 16, 1000)
SLOTS = 1024


class Numbers:
    """Seeded keys and an engine that holds them; inputs and outputs are wire forms."""

    def __init__(self, periods: tuple[int, ...], device: str = "cpu") -> None:
        params = preset(PRESET)
        self.device = device
        self.native = native_set(params)
        chain = self.native.chain
        self._ring = Ring(chain, load_kernels(device, chain.ring_dimension, chain.moduli))
        self.hash = self.native.older[1]  # the goldens are of format version 1, made and read as such
        self.archive = Archive(chain, self._ring.kernels, self.hash, self.native.floor)
        self._secret = make_secret(chain.ring_dimension, SeededSource(23))
        request = KeyRequest(params=params, rotations=ROTATIONS, bootstrap_periods=periods)
        ids = key_ids(self.native, ROTATIONS, True, periods)
        maker = self._maker(24)
        self.keys = {key.name: self._first(self.archive.dump_key(maker.switch_key(key))) for key in ids}
        self.engine = NativeEngine(request, MemoryKeys(self.keys), device=device)

    def _maker(self, seed: int) -> KeyMaker:
        return KeyMaker(self._ring, self._secret, SeededSource(seed), self.hash)

    def _first(self, blob: bytes) -> bytes:
        return as_version_1(blob, self.hash)

    def encrypted(self, values: NDArray[Any], level: int, *, seed: int) -> bytes:
        """A fresh ciphertext on the wire."""
        return self._first(self.archive.dump_fresh(self._maker(seed).encrypt(values, level + self.native.floor)))

    def residues(self, seed: int, level: int) -> Any:
        """A value of uniform residues: as good as any ciphertext for integer operations."""
        chain, level = self.native.chain, level + self.native.floor
        words = random_words(chain.moduli, chain.rows(level), (2,), chain.ring_dimension, seed)
        head = np.array([level, 0], "<u4").tobytes() + np.array([chain.scales()[level]], "<f8").tobytes()
        return self.engine.parse(self._first(seal(CIPHERTEXT, self.hash, head + words.astype("<u4").tobytes())))

    def digest(self, value: Any) -> str:
        """SHA-256 of a value's wire form: level, scale and every residue."""
        return hashlib.sha256(self._first(self.engine.dump(value))).hexdigest()


def sparse_slots(seed: int) -> NDArray[np.complex128]:
    """Slots of a polynomial with five coefficients that are not zero, multiples of 1/8: it encodes alike everywhere."""
    rng = np.random.default_rng(seed)
    coefficients = np.zeros(2 * SLOTS)
    coefficients[rng.choice(2 * SLOTS, 5, replace=False)] = rng.integers(1, 8, 5) / 8 * rng.choice([-1, 1], 5)
    return Encoder(2 * SLOTS).decode(coefficients)


def vector(seed: int) -> Vector:
    """A plaintext that encodes alike everywhere."""
    return Vector(f"sparse {seed}", lambda: sparse_slots(seed))


def golden_map() -> LinearMap:
    """Three giant steps of up to four baby steps each."""
    babies = {0: (0, 1, 2, 3), 8: (0, 2), 16: (1, 3, 5)}
    return linear_map("golden", {g: {b: sparse_slots(100 * g + b) for b in row} for g, row in babies.items()})


def exact(numbers: Numbers) -> dict[str, str]:
    """Every operation of the engine where no processor may differ."""
    e = numbers.engine
    a, b, c, low = (numbers.residues(k, level) for k, level in ((1, 6), (2, 6), (3, 9), (4, 1)))
    half, quarter = (numbers.encrypted(np.array([v]), level, seed=31) for v, level in ((0.5, 0), (-0.25, 2)))
    blobs = {"encrypt": half, "encrypt at the top": numbers.encrypted(np.array([0.5]), 9, seed=31)}
    blobs |= {f"key {name}": numbers.keys[name] for name in list(numbers.keys)[:5]}
    values = {
        "add": e.add(a, b),
        "sub": e.sub(a, b),
        "negate": e.negate(a),
        "times": e.times(a, -3),
        "times i": e.times_i(c),
        "add constant": e.add_plain(a, 0.375),
        "add complex": e.add_plain(a, 0.375 - 0.5j),
        "add vector": e.add_plain(a, vector(1)),
        "multiply": e.multiply(a, b),
        "multiply at the top": e.multiply(c, c),
        "multiply to the floor": e.multiply(low, low),
        "multiply sum": e.multiply_sum([(a, b), (b, b), (a, a)]),
        "multiply constant": e.multiply_plain(a, 0.7),
        "multiply complex": e.multiply_plain(a, 0.625 + 0.25j),
        "multiply vector": e.multiply_plain(a, vector(2)),
        "multiply plain sum": e.multiply_plain_sum([(a, vector(3)), (b, 0.3), (a, vector(4)), (b, vector(5))]),
        "rotate": e.rotate(a, 5),
        "rotate at the top": e.rotate(c, 1000),
        "conjugate": e.conjugate(a),
        "linear": e.linear(a, golden_map()),
        "linear at the top": e.linear(c, golden_map()),
        "drop": e.drop(c, 2),
        "drop to the floor": e.drop(a, 0),
        **{f"rotate many, {k}": v for k, v in zip((1, 0, 3, 16), e.rotate_many(a, (1, 0, 3, 16)))},
    }
    values |= _refreshed(e, e.parse(half), e.parse(quarter), 1)
    out = {name: hashlib.sha256(blob).hexdigest() for name, blob in blobs.items()}
    out |= {name: numbers.digest(value) for name, value in values.items()}
    return {**out, "polynomial": polynomial(numbers.device)}


def rounded(numbers: Numbers) -> dict[str, str]:
    """Refreshes of longer periods, and a map with dense diagonals: they encode matrices of roots of unity."""
    e, rng = numbers.engine, np.random.default_rng(5)
    values = {}
    for period in (SLOTS, 16):
        slots = rng.integers(-8, 9, (2, period)) / 8
        x, y = (e.parse(numbers.encrypted(v, level, seed=37)) for level, v in enumerate(slots))
        values |= _refreshed(e, x, y, period)
    d = {k: rng.integers(-64, 65, SLOTS) / 64 for k in (0, 1, 8, 9)}
    dense = linear_map("dense", {g: {b: d[g + b] for b in (0, 1)} for g in (0, 8)})
    values["linear, dense"] = e.linear(numbers.residues(6, 5), dense)
    return {name: numbers.digest(value) for name, value in values.items()}


def _refreshed(e: NativeEngine, x: Any, y: Any, period: int) -> dict[str, Any]:
    real, imaginary = e.bootstrap_pair(x, y, period=period, bound=1.0)
    return {
        f"bootstrap, period {period}": e.bootstrap(x, period=period, bound=1.0),
        f"bootstrap, period {period}, bound 6": e.bootstrap(y, period=period, bound=6.0),
        f"bootstrap pair, period {period}, first": real,
        f"bootstrap pair, period {period}, second": imaginary,
    }


def polynomial(device: str) -> str:
    """A Chebyshev series of degree 15 on uniform residues, at EvalMod's levels, which have no wire form."""
    native = native_set(preset(PRESET))
    chain, scales = native.chain, native.chain.eval_scales()
    s = Scheme(chain, device=device, seed=29, rotations=(), spec=native.bootstrap)
    top = chain.normal_levels + chain.eval_levels
    x = Ciphertext(top, scales[top], random_words(chain.moduli, chain.rows(top), (2,), chain.ring_dimension, 7))
    series = np.arange(-7, 9) / 16
    return digest(ChebyshevEvaluator(s.evaluator, x, scales).evaluate(series, top - 4, scales[top - 4]).data)


def arithmetic() -> str:
    """What this machine's numpy makes of roots of unity, complex products and a Fourier transform, to the last bit."""
    roots = np.exp(1j * np.pi * np.arange(2 * SLOTS) / (2 * SLOTS))
    mixed = roots * np.roll(roots, 77) * np.linspace(-1, 1, 2 * SLOTS) + roots.conj()
    found = (roots, mixed, np.fft.fft(mixed), np.fft.ifft(mixed * roots))
    return hashlib.sha256(b"".join(np.ascontiguousarray(x).astype("<c16").tobytes() for x in found)).hexdigest()


def everything() -> dict[str, Any]:
    """All digests, and the arithmetic the rounded ones hold for."""
    numbers = Numbers((SLOTS, 16, 1))
    return {"exact": exact(numbers), "rounded": rounded(numbers), "arithmetic": arithmetic()}
