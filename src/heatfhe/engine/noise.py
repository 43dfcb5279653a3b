# SPDX-License-Identifier: Apache-2.0
"""The refresh error of an engine, measured by the size and the period of what is refreshed: a table the clear engine
injects.

Two errors are told apart. Rounding noise is random; relative to the bound it goes with the root of the period. The sine
that stands in for the modular reduction bends large *coefficients* of the refreshed polynomial by their cube: nothing
on values that look random, whose coefficients are small, and a systematic error on a number that fills all slots.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heatfhe.ckks import Params
from heatfhe.engine.protocol import Engine, KeyRequest
from heatfhe.errors import ConfigError
from heatfhe.files import read_record, write_json
from heatfhe.progress import SILENT, Reporter

KIND, VERSION = "noise-table", 2
COLUMNS = ("sigma", "constant", "largest")
MAGNITUDES = (0.001, 0.01, 0.1, 1.0, 2.0, 4.0, 16.0, 64.0, 256.0, 1024.0)
PERIODS = (1, 4, 64, 128, 512, 1024)
HUGE, TINY = 2.0**60, 2.0**-200  # no measured magnitude or error lies outside; ratios of them stay finite
SMALL = 0.125  # of the bound: the cubic error of such values is 512 times smaller than that of the bound
SAMPLES = 32  # at least so many values are refreshed where a period holds few of them

Real = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class PeriodNoise:
    """Errors of a refresh of one period, at bound one.

    ``spread`` is the root mean square error on small random values; ``bias`` the mean error on the bound itself in
    every slot, negative where the refresh makes it smaller.
    """

    spread: float
    bias: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseTable:
    """Errors of a refresh by the magnitude of its input, which is told to the engine as its bound.

    Over all slots: ``sigma`` is the root mean square error on uniform values, ``constant`` the same on one value in
    every slot, ``largest`` the largest error seen on either. ``periods`` has the errors of sparser refreshes.
    """

    name: str
    engine: str
    params: str
    hardware: str
    samples: int
    sigma: Mapping[float, float]
    constant: Mapping[float, float]
    largest: Mapping[float, float]
    periods: Mapping[int, PeriodNoise]

    def __post_init__(self) -> None:
        if not self.sigma or not set(self.sigma) == set(self.constant) == set(self.largest):
            raise ConfigError(f"noise table {self.name}: needs all three errors at the same magnitudes, at least one")
        for m, s in (*self.sigma.items(), *self.constant.items(), *self.largest.items()):
            if not (1 / HUGE <= m <= HUGE and _measured(s)):
                raise ConfigError(f"noise table {self.name}: magnitude {m!r} with error {s!r} is not a measurement")
        if not self.periods:
            raise ConfigError(f"noise table {self.name}: needs the errors of at least one period")
        for p, n in self.periods.items():
            if not (1 <= p <= HUGE and _measured(n.spread) and abs(n.bias) <= HUGE):
                raise ConfigError(f"noise table {self.name}: period {p!r} with {n} is not a measurement")

    def bits(self, magnitude: float) -> float:
        """-log2 of the largest error relative to the magnitude, which is the bound."""
        return -math.log2(max(self.largest[magnitude] / magnitude, 2.0**-60))

    def at(self, bound: float, period: int) -> PeriodNoise:
        """Errors of a refresh with this bound and period: between measured ones by straight lines, over the logarithm
        of the period."""
        sizes = sorted(self.sigma)
        here, one = (float(np.interp(b, sizes, [self.sigma[s] for s in sizes])) for b in (bound, 1.0))
        unit = here / one if one > 0 else bound
        known = sorted(self.periods)
        logs = np.log2(known)
        floor = 2.0**-200
        spread = np.interp(math.log2(period), logs, np.log([self.periods[p].spread + floor for p in known]))
        bias = np.interp(math.log2(period), logs, [self.periods[p].bias for p in known])
        return PeriodNoise(unit * float(np.exp(spread)), unit * float(bias))

    def noise(self, params: Params) -> Callable[[Real, float, np.random.Generator], Real]:
        """What the clear engine adds at every bootstrap of a plan for these parameters, which must be those measured.

        Noise means nothing without the sizes that values are refreshed at, and those differ from set to set.
        """
        if params.name != self.params:
            raise ConfigError(
                f"noise table {self.name} was measured on {self.params}, the plan is for {params.name}; "
                "measure that set with heat measure-noise"
            )

        def error(values: Real, bound: float, rng: np.random.Generator) -> Real:
            found = self.at(bound, values.shape[-1])
            return np.asarray(
                found.spread * rng.standard_normal(values.shape) + found.bias * bent(values / max(bound, 1e-300))
            )

        return error

    def as_json(self) -> dict[str, Any]:
        """Plain JSON form."""
        return {
            "name": self.name,
            "engine": self.engine,
            "params": self.params,
            "hardware": self.hardware,
            "samples": self.samples,
            **{word: {repr(m): getattr(self, word)[m] for m in sorted(self.sigma)} for word in COLUMNS},
            "periods": {str(p): [self.periods[p].spread, self.periods[p].bias] for p in sorted(self.periods)},
        }

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> NoiseTable:
        """Inverse of as_json; checks everything again."""
        try:
            columns = {w: {float(m): float(s) for m, s in body[w].items()} for w in COLUMNS}
            periods = {int(p): PeriodNoise(float(n[0]), float(n[1])) for p, n in body["periods"].items()}
            return cls(**{**body, **columns, "periods": periods})
        except (TypeError, KeyError, AttributeError, ValueError, IndexError) as err:
            raise ConfigError(f"not a noise table: {err}") from err

    def save(self, path: Path) -> None:
        """Write the table as a versioned JSON file."""
        write_json(path, KIND, VERSION, self.as_json())

    @classmethod
    def load(cls, path: Path) -> NoiseTable:
        """Read a table written by save; refuses altered or foreign files."""
        return read_record(path, KIND, (VERSION,), cls.from_json, remedy="measure the table again")


def _measured(error: float) -> bool:
    return error == 0 or TINY <= error <= HUGE


def bent(values: Real) -> Real:
    """Cubes of the coefficients of the polynomial behind real slots (..., p), seen in the slots again.

    A number that fills all slots is one coefficient: its own cube. The polynomial has 2p coefficients c_k and takes the
    value z_j at the root of unity w^(5^j), w = exp(2 pi i / 4p); so c_k = 1/p Re sum_j z_j w^(-k 5^j).

    Source  the sine's series: sin(x) = x - x^3/6 + ..., applied to coefficients between the two linear transforms.
    """
    p = values.shape[-1]
    odd = np.array([pow(5, j, 4 * p) for j in range(p)])
    spread = np.zeros((*values.shape[:-1], 4 * p))
    spread[..., odd] = values
    coefficients = np.fft.fft(spread, axis=-1).real[..., : 2 * p] / p
    back = np.zeros_like(spread)
    back[..., : 2 * p] = coefficients**3
    return np.asarray(np.fft.ifft(back, axis=-1).real[..., odd] * (4 * p))


def noise_request(params: Params, periods: Sequence[int] = ()) -> KeyRequest:
    """The keys a measurement of noise needs."""
    return KeyRequest(params=params, rotations=(), bootstrap_periods=(*periods, params.slots))


def measure_noise(
    engine: Engine[Any],
    encrypt: Callable[..., bytes],
    decrypt: Callable[[bytes], NDArray[np.complex128]],
    *,
    name: str,
    hardware: str,
    magnitudes: Sequence[float] = MAGNITUDES,
    periods: Sequence[int] = (),
    repeats: int = 2,
    seed: int = 0,
    reporter: Reporter = SILENT,
) -> NoiseTable:
    """Refresh known values of every magnitude and period and look at what comes back, through the keyring's methods.

    For the client's side alone: decrypted errors of an approximate scheme tell about the key and are not published.
    """
    slots = engine.params.slots
    if repeats < 1 or not magnitudes or min(magnitudes) <= 0:
        raise ConfigError("noise is measured at positive magnitudes, at least once each")
    if any(p < 1 or slots % p for p in periods):
        raise ConfigError(f"periods divide the {slots} slots, got {sorted(periods)}")
    rng = np.random.default_rng(seed)

    def error(values: Real, bound: float) -> Real:
        wanted = np.tile(values, slots // len(values))
        blob = encrypt(wanted, level=0)
        got = decrypt(engine.dump(engine.bootstrap(engine.parse(blob), period=len(values), bound=bound)))
        return (got - wanted).real

    sigma: dict[float, float] = {}
    constant: dict[float, float] = {}
    largest: dict[float, float] = {}
    wide = sorted({*periods, slots})
    reporter.start("noise", len(magnitudes) + len(wide))
    for m in map(float, magnitudes):
        spread = [error(rng.uniform(-m, m, slots), m) for _ in range(repeats)]
        flat = [error(np.full(slots, m * rng.choice([-1.0, 1.0])), m) for _ in range(repeats)]
        sigma[m], constant[m] = rms(spread), rms(flat)
        largest[m] = float(np.abs(spread + flat).max())
        reporter.advance("noise", magnitude=m, sigma=sigma[m])
    found = {}
    for p in wide:
        times = max(repeats, -(-SAMPLES // p))
        small = rms([error(rng.uniform(-SMALL, SMALL, p), 1.0) for _ in range(times)])
        signs = rng.choice([-1.0, 1.0], max(repeats, times // 4))
        bias = float(np.mean([sign * error(np.full(p, sign), 1.0) for sign in signs]))
        found[p] = PeriodNoise(small, bias)
        reporter.advance("noise", period=p, spread=small, bias=bias)
    reporter.done("noise")
    return NoiseTable(
        name=name,
        engine=engine.params.engine,
        params=engine.params.name,
        hardware=hardware,
        samples=2 * repeats * slots,
        sigma=sigma,
        constant=constant,
        largest=largest,
        periods=found,
    )


def rms(errors: Sequence[Real]) -> float:
    """Root mean square of all of them."""
    return float(np.sqrt(np.mean(np.square(errors))))
