# SPDX-License-Identifier: Apache-2.0
"""The refresh error of an engine, measured by the size of what is refreshed: a table the clear engine injects."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heatfhe.ckks.params import Params
from heatfhe.engine.clear import BootstrapNoise
from heatfhe.engine.protocol import Engine, KeyRequest
from heatfhe.errors import ConfigError
from heatfhe.files import read_json, write_json
from heatfhe.progress import SILENT, Reporter

KIND, VERSION = "noise-table", 1
COLUMNS = ("sigma", "constant", "largest")
MAGNITUDES = (0.01, 0.1, 1.0, 2.0, 4.0, 16.0, 64.0, 256.0, 1024.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseTable:
    """Errors of a refresh by the magnitude of its input, which is told to the engine as its bound.

    ``sigma`` is the root mean square error on uniform values, the typical input and what the clear engine injects;
    ``constant`` the same on one value in every slot, the worst input for the polynomial that stands in for the modular
    reduction; ``largest`` the largest error seen on either.
    """

    name: str
    engine: str
    params: str
    hardware: str
    samples: int
    sigma: Mapping[float, float]
    constant: Mapping[float, float]
    largest: Mapping[float, float]

    def __post_init__(self) -> None:
        if not self.sigma or not set(self.sigma) == set(self.constant) == set(self.largest):
            raise ConfigError(f"noise table {self.name}: needs all three errors at the same magnitudes, at least one")
        for m, s in (*self.sigma.items(), *self.constant.items(), *self.largest.items()):
            if not (m > 0 and math.isfinite(m) and s >= 0 and math.isfinite(s)):
                raise ConfigError(f"noise table {self.name}: magnitude {m!r} with error {s!r} is not a measurement")

    def bits(self, magnitude: float) -> float:
        """-log2 of the largest error relative to max(1, magnitude)."""
        return -math.log2(max(self.largest[magnitude] / max(1.0, magnitude), 2.0**-60))

    def noise(self) -> BootstrapNoise:
        """What the clear engine adds at every bootstrap."""
        return BootstrapNoise(table=dict(self.sigma))

    def as_json(self) -> dict[str, Any]:
        """Plain JSON form."""
        return {
            "name": self.name,
            "engine": self.engine,
            "params": self.params,
            "hardware": self.hardware,
            "samples": self.samples,
            **{word: {repr(m): getattr(self, word)[m] for m in sorted(self.sigma)} for word in COLUMNS},
        }

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> NoiseTable:
        """Inverse of as_json; checks everything again."""
        try:
            columns = {w: {float(m): float(s) for m, s in body[w].items()} for w in COLUMNS}
            return cls(**{**body, **columns})
        except (TypeError, KeyError, AttributeError, ValueError) as err:
            raise ConfigError(f"not a noise table: {err}") from err

    def save(self, path: Path) -> None:
        """Write the table as a versioned JSON file."""
        write_json(path, KIND, VERSION, self.as_json())

    @classmethod
    def load(cls, path: Path) -> NoiseTable:
        """Read a table written by save."""
        return cls.from_json(read_json(path, KIND, (VERSION,)))


def noise_request(params: Params, period: int | None = None) -> KeyRequest:
    """The keys a measurement of noise needs."""
    return KeyRequest(params=params, rotations=(), bootstrap_periods=(period or params.slots,))


def measure_noise(
    engine: Engine[Any],
    encrypt: Callable[..., bytes],
    decrypt: Callable[[bytes], NDArray[np.complex128]],
    *,
    name: str,
    hardware: str,
    magnitudes: Sequence[float] = MAGNITUDES,
    period: int | None = None,
    repeats: int = 2,
    seed: int = 0,
    reporter: Reporter = SILENT,
) -> NoiseTable:
    """Refresh known values of every magnitude and look at what comes back; the keyring's two methods are given.

    For the client's side alone: decrypted errors of an approximate scheme tell about the key and are not published.
    """
    params = engine.params
    period = period or params.slots
    if repeats < 1 or not magnitudes or min(magnitudes) <= 0:
        raise ConfigError("noise is measured at positive magnitudes, at least once each")
    rng = np.random.default_rng(seed)
    sigma: dict[float, float] = {}
    constant: dict[float, float] = {}
    largest: dict[float, float] = {}
    reporter.start("noise", len(magnitudes))
    for magnitude in map(float, magnitudes):
        squares, worst = [], 0.0
        for _ in range(repeats):
            spread = np.tile(rng.uniform(-magnitude, magnitude, period), params.slots // period)
            for wanted in (spread, np.full(params.slots, magnitude * rng.choice([-1.0, 1.0]))):
                blob = encrypt(wanted, level=0)
                got = decrypt(engine.dump(engine.bootstrap(engine.parse(blob), period=period, bound=magnitude)))
                error = (got - wanted).real
                squares.append(float(np.mean(error**2)))
                worst = max(worst, float(np.abs(error).max()))
        sigma[magnitude], constant[magnitude] = (math.sqrt(np.mean(squares[i::2])) for i in (0, 1))
        largest[magnitude] = worst
        reporter.advance("noise", magnitude=magnitude, sigma=sigma[magnitude])
    reporter.done("noise")
    return NoiseTable(
        name=name,
        engine=params.engine,
        params=params.name,
        hardware=hardware,
        samples=2 * repeats * params.slots,
        sigma=sigma,
        constant=constant,
        largest=largest,
    )
