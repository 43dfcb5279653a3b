# SPDX-License-Identifier: Apache-2.0
"""Short runs on a two-layer model and a text it can learn: shared by the tests of training."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from heatfhe.sites import Prepared, prepare
from heatfhe.training import Recipe, Trained, Windows, cut, recipe, train
from tests.gpt2_tiny import tiny_gpt2

CONTEXT = 16


def windows(seed: int = 0, count: int = 48) -> Windows:
    """A walk around a ring of 48 tokens in steps of 1 to 3: three choices at every position, ln 3 = 1.1 nats."""
    steps = np.random.default_rng(seed).integers(1, 4, size=CONTEXT * count + 1)
    return cut(np.cumsum(steps) % 48, CONTEXT)


def fresh(seed: int = 1, **options: Any) -> Prepared:
    """The model every test starts from."""
    return prepare(tiny_gpt2(seed, width=32, **options))


def short(**changes: Any) -> Recipe:
    """The tiny recipe cut to two, four and two updates."""
    base = recipe("tiny")
    phases: dict[str, Any] = {
        "squeeze": replace(base.squeeze, updates=2),
        "heat": replace(base.heat, updates=4),
        "cooldown": replace(base.cooldown, updates=2),
    }
    quick: dict[str, Any] = {"calibration_windows": 4, "checkpoint_every": 2, "validate_every": 2}
    return replace(base, **{**phases, **quick, **changes})


def go(prepared: Prepared, recipe: Recipe, folder: Path | None = None, **options: Any) -> Trained:
    """Train on the ring, without an argmax schedule and without TensorBoard."""
    training, held_out = windows().split(8)
    options = {"held_out": held_out, "tensorboard": False, "argmax": False, **options}
    return train(prepared, training, recipe, folder=folder, **options)


class Killed(BaseException):
    """What a kill looks like from inside: nothing catches it."""


@dataclass
class KillAt:
    """A reporter that dies at its nth call; without n it counts them."""

    n: int | None = None
    calls: int = 0

    def start(self, task: str, total: int | None = None) -> None:
        self._tick()

    def advance(self, task: str, **facts: float | int | str) -> None:
        self._tick()

    def done(self, task: str) -> None:
        self._tick()

    def _tick(self) -> None:
        self.calls += 1
        if self.calls == self.n:
            raise Killed


def same_weights(a: Prepared, b: Prepared) -> bool:
    """Bit for bit."""
    left, right = a.model.state_dict(), b.model.state_dict()
    return left.keys() == right.keys() and all(torch.equal(left[k], right[k]) for k in left)
