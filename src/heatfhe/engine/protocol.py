# SPDX-License-Identifier: Apache-2.0
"""What an engine is: a dozen operations on encrypted slot vectors, and the client's half that holds the secret.

Conventions. ``level`` counts the rescalings still available. Every product costs one level and leaves a value at the
canonical scale of its level; operands of add, sub and multiply have equal levels (a plan drops values explicitly).
``rotate(x, k)[s] = x[(s + k) mod slots]``. An engine never branches on data and never sees a secret.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar, Union

import numpy as np
from numpy.typing import NDArray

from heatfhe.ckks import Params
from heatfhe.errors import ConfigError, MissingKeyError
from heatfhe.planning import LinearMap, Vector

C = TypeVar("C")
Slots = NDArray[Any]  # float64 or complex128, one entry per slot


Plain = Union[Vector, float, complex]


class Engine(Protocol[C]):
    """Executes plan steps on values of type C, on the server's side."""

    @property
    def params(self) -> Params: ...

    @property
    def records(self) -> bool:
        """Whether replay gains anything: if not, callers need not ask."""

    def replay(self, name: Hashable, body: Callable[[Sequence[C]], Sequence[C]], values: Sequence[C]) -> Sequence[C]:
        """body(values). An engine may record under this name what body does, and play that the next time.

        Body must do the same for all values of that name; its plaintexts are all Vectors that are kept, or numbers.
        """

    def level(self, a: C) -> int:
        """Rescalings left."""

    def add(self, a: C, b: C) -> C: ...

    def sub(self, a: C, b: C) -> C: ...

    def negate(self, a: C) -> C: ...

    def add_plain(self, a: C, p: Plain) -> C: ...

    def times(self, a: C, k: int) -> C:
        """Product with a small integer; free."""

    def multiply(self, a: C, b: C) -> C:
        """Slot-wise product, relinearised and rescaled."""

    def multiply_sum(self, pairs: Sequence[tuple[C, C]]) -> C:
        """Sum of products with one relinearisation and one rescale."""

    def multiply_plain(self, a: C, p: Plain) -> C:
        """Product with a plaintext, rescaled."""

    def multiply_plain_sum(self, pairs: Sequence[tuple[C, Plain]]) -> C:
        """Sum of plaintext products with one rescale."""

    def linear(self, a: C, m: LinearMap) -> C:
        """A plaintext linear map, one level."""

    def rotate(self, a: C, by: int) -> C: ...

    def rotate_many(self, a: C, by: Sequence[int]) -> list[C]:
        """Several rotations of one value, sharing its decomposition (hoisted)."""

    def add_rotations(self, a: C, by: Sequence[int]) -> C:
        """A value plus several of its rotations, none of them by 0: one decomposition and one division, if it can."""

    def conjugate(self, a: C) -> C: ...

    def times_i(self, a: C) -> C:
        """Product with the imaginary unit; an engine that spends a level on it says so in Params.literal."""

    def drop(self, a: C, level: int) -> C:
        """The same value at a lower level."""

    def bootstrap(self, a: C, *, period: int, bound: float) -> C:
        """Refresh to params.levels. The value is real, repeats with this period, and is at most bound in magnitude."""

    def bootstrap_pair(self, a: C, b: C, *, period: int, bound: float) -> tuple[C, C]:
        """Refresh two real values in one complex bootstrap, to params.levels - params.pair_levels."""

    def dump(self, a: C) -> bytes:
        """Wire form of a value."""

    def parse(self, blob: bytes) -> C:
        """Inverse of dump; checks everything before it allocates and raises WireError."""

    def synchronize(self) -> None:
        """Wait until everything asked for is done: an engine may return before. Called before a clock is read."""


class KeySource(Protocol):
    """Where an engine reads evaluation keys from: named blobs on disk or in memory."""

    def names(self) -> Iterable[str]: ...

    def read(self, name: str) -> bytes: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRequest:
    """Exactly the keys a plan needs: nothing more is made, nothing less is accepted.

    ``rotation_levels`` is the highest level at which each rotation is used, in the order of ``rotations``; with none
    every key serves all levels. A key for fewer levels is smaller.
    """

    params: Params
    rotations: tuple[int, ...]
    rotation_levels: tuple[int, ...] = ()
    conjugation: bool = True
    bootstrap_periods: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        highest: dict[int, int] = {}
        levels = self.rotation_levels or (self.params.levels,) * len(self.rotations)
        if len(levels) != len(self.rotations):
            raise ConfigError(f"keys of {len(self.rotations)} rotations for {len(levels)} levels; name one for each")
        for rotation, level in zip(self.rotations, levels):
            if type(level) is not int or not 0 <= level <= self.params.levels:
                raise ConfigError(f"a key serves levels up to one of 0 to {self.params.levels}, got {level!r:.40}")
            highest[rotation] = max(level, highest.get(rotation, 0))
        highest.pop(0, None)
        object.__setattr__(self, "rotations", tuple(sorted(highest)))
        if self.rotation_levels:
            object.__setattr__(self, "rotation_levels", tuple(highest[k] for k in self.rotations))
        object.__setattr__(self, "bootstrap_periods", tuple(sorted(set(self.bootstrap_periods))))

    def check_level(self, level: int) -> None:
        """Refuse a level at which nothing is encrypted."""
        if not 0 <= level <= self.params.levels:
            raise ConfigError(f"values are encrypted at levels 0 to {self.params.levels}, got {level}")

    def reach(self, slots: int) -> dict[int, int]:
        """The highest level of each rotation, reduced to the slots."""
        out: dict[int, int] = {}
        for k, level in zip(self.rotations, self.rotation_levels or (self.params.levels,) * len(self.rotations)):
            out[k % slots] = max(level, out.get(k % slots, 0))
        return out


def check_rotation(reach: Mapping[int, int], by: int, level: int) -> None:
    """Refuse a rotation, reduced to the slots, that keys of this reach do not serve at a level; 0 needs no key."""
    if by and by not in reach:
        raise MissingKeyError(f"rotation by {by} is not among the plan's keys; make keys for this plan")
    if by and level > reach[by]:
        raise MissingKeyError(
            f"rotation by {by}: its key serves levels up to {reach[by]}, the value is at level {level}; "
            "make keys for this plan"
        )


class Keyring(Protocol):
    """The client's half of an engine: makes keys, encrypts, decrypts. Never handed to a server function."""

    @property
    def request(self) -> KeyRequest: ...

    def encrypt(self, values: Slots, *, level: int) -> bytes:
        """A fresh ciphertext, in wire form."""

    def decrypt(self, blob: bytes) -> NDArray[np.complex128]:
        """Slot values of a ciphertext in wire form."""

    def evaluation_keys(self) -> Iterable[tuple[str, bytes]]:
        """Name and bytes of every public evaluation key, in a fixed order, made one at a time."""

    def save(self, folder: Path) -> None:
        """Write the secret part, files of mode 0600."""


class EngineFactory(Protocol):
    """Opens an engine on the server's side from public things alone."""

    def __call__(self, request: KeyRequest, keys: KeySource, **options: Any) -> Engine[Any]: ...


class KeyringFactory(Protocol):
    """Makes a keyring, or loads one saved before."""

    def __call__(self, request: KeyRequest, folder: Path | None = None) -> Keyring: ...


@dataclass(frozen=True, slots=True)
class MemoryKeys:
    """Evaluation keys held in memory: tests and local runs."""

    blobs: Mapping[str, bytes] = field(default_factory=dict)

    def names(self) -> Iterable[str]:
        return self.blobs.keys()

    def read(self, name: str) -> bytes:
        return self.blobs[name]
