# SPDX-License-Identifier: Apache-2.0
"""Fidelity: how well a run agrees with its own clear run: KL, top-1, collapse and perplexity, as the paper has them.

Shapes: W windows, P positions, V vocabulary. A position is diverged when it holds a non-finite logit or one larger than
ten times the calibrated maximum; a window is collapsed when more than half of its positions are diverged.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heatfhe import records
from heatfhe.errors import ConfigError
from heatfhe.files import existing, plain

Logits = NDArray[np.float64]
MANY = 1 << 20  # logits from which on they are shared out among cores


@dataclass(frozen=True, slots=True, kw_only=True)
class Fidelity:
    """Agreement of a run with its own clear run.

    ``kl`` is the median over windows of the mean over their sound positions, over windows that did not collapse (nan if
    all did); ``top1`` a share of all positions, diverged ones counting as misses; ``collapsed`` of ``windows`` windows;
    ``perplexity`` the run's own over windows that did not collapse, ``clear_perplexity`` the clear run's over all.
    ``lost`` positions of the run diverged and are not in its perplexity; ``clear_lost`` ones of the clear run are no
    number, and then its perplexity is none either.
    """

    kl: float
    top1: float
    collapsed: int
    windows: int
    perplexity: float
    clear_perplexity: float
    lost: int = 0
    clear_lost: int = 0
    kl_by_position: tuple[float, ...] = ()
    top1_by_position: tuple[float, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Plain JSON form; a number that does not exist is null."""
        return existing(plain(self))


def log_softmax(logits: Logits) -> Logits:
    """Row-wise, in float64; nan rows stay nan."""
    with np.errstate(invalid="ignore", over="ignore"):
        shifted = logits - np.max(logits, axis=-1, keepdims=True)
        return np.asarray(shifted - np.log(np.sum(np.exp(shifted), axis=-1, keepdims=True)))


def kl_divergence(clear: Logits, run: Logits) -> NDArray[np.float64]:
    """KL(clear || run) in nats at every position."""
    p, q = log_softmax(clear), log_softmax(run)
    with np.errstate(invalid="ignore", over="ignore"):
        return np.asarray((np.exp(p) * (p - q)).sum(axis=-1))


def diverged(run: Logits, largest: float) -> NDArray[np.bool_]:
    """Positions that are non-finite or beyond ten times the calibrated maximum."""
    with np.errstate(invalid="ignore"):
        return np.asarray(records.diverged(run, largest))


def cross_entropy(logits: Logits, targets: NDArray[np.int64]) -> NDArray[np.float64]:
    """Nats of every target under the logits at its position."""
    return _nats(log_softmax(logits), targets)


@dataclass(frozen=True, slots=True)
class Scores:
    """What fidelity needs of each position: whether it diverged, KL and the run's nats (nan there), whether the same
    token leads (never there), and the clear run's nats. All of one shape, (W, P) or a part of it."""

    bad: NDArray[np.bool_]
    kl: NDArray[np.float64]
    same: NDArray[np.bool_]
    nats: NDArray[np.float64]
    clear_nats: NDArray[np.float64]

    @classmethod
    def of(cls, clear: Logits, run: Logits, targets: NDArray[np.int64], *, largest: float) -> Scores:
        """Compare logits (..., V) of a run with its clear run's; ``targets`` (...) are the next tokens."""
        return cls._of(clear, run[None], targets, largest)[0]

    @classmethod
    def of_rows(
        cls, clear: Logits, rows: Logits, targets: NDArray[np.int64], *, largest: float
    ) -> tuple[Scores, ...]:
        """Compare several runs (R, W, V) with one clear run (W, V), a window at a time: on all cores, where that pays,
        since numpy lets other threads run."""
        parts = [slice(w, w + 1) for w in range(len(clear))] if rows.size >= MANY else [slice(None)]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            found = list(pool.map(lambda w: cls._of(clear[w], rows[:, w], targets[w], largest), parts))
        return tuple(cls.stack(windows, axis=0) for windows in zip(*found))

    @classmethod
    def _of(
        cls, clear: Logits, rows: Logits, targets: NDArray[np.int64], largest: float
    ) -> tuple[Scores, ...]:
        """Scores of each of several runs."""
        p, found = log_softmax(clear), []
        first, clear_nats = np.argmax(clear, axis=-1), _nats(p, targets)
        with np.errstate(over="ignore", invalid="ignore"):  # a clear run may be lost itself
            chances = np.exp(p)
            for run in rows:
                bad = diverged(run, largest)
                sound = np.where(bad[..., None], 0.0, run)
                q = log_softmax(sound)
                kl = np.where(bad, np.nan, (chances * (p - q)).sum(axis=-1))
                same = ~bad & (np.argmax(sound, axis=-1) == first)
                found.append(cls(bad, kl, same, np.where(bad, np.nan, _nats(q, targets)), clear_nats))
        return tuple(found)

    @classmethod
    def stack(cls, columns: Sequence[Scores], axis: int = 1) -> Scores:
        """Positions (axis 1) or groups of windows (axis 0) put together."""
        join = np.concatenate if axis == 0 else np.stack
        return cls(*(join([getattr(c, name) for c in columns], axis=axis) for name in cls.__slots__))

    def fidelity(self) -> Fidelity:
        """Everything over windows and positions (W, P)."""
        collapsed = self.bad.mean(axis=1) > 0.5
        stable, nats = self.kl[~collapsed], self.nats[~collapsed]
        return Fidelity(
            kl=_median(_nanmean(stable, axis=1)),
            top1=float(self.same.mean()),
            collapsed=int(collapsed.sum()),
            windows=len(collapsed),
            perplexity=float(np.exp(np.nanmean(nats))) if np.isfinite(nats).any() else float("nan"),
            clear_perplexity=float(np.exp(self.clear_nats.mean())),
            lost=int(self.bad.sum()),
            clear_lost=int((~np.isfinite(self.clear_nats)).sum()),
            kl_by_position=tuple(_median(column) for column in stable.T),
            top1_by_position=tuple(float(v) for v in self.same.mean(axis=0)),
        )


def fidelity(clear: Logits, run: Logits, targets: NDArray[np.int64], *, largest: float) -> Fidelity:
    """Compare logits (W, P, V) of a run with its clear run's; ``targets`` (W, P) are the next tokens."""
    if clear.shape != run.shape or clear.shape[:-1] != targets.shape or clear.ndim != 3:
        shapes = f"{clear.shape}, {run.shape}, {targets.shape}"
        raise ConfigError(f"fidelity needs logits (W, P, V) twice and targets (W, P), got {shapes}")
    return Scores.of(clear, run, targets, largest=largest).fidelity()


def perplexity(logits: Logits, targets: NDArray[np.int64]) -> float:
    """exp of the mean cross-entropy."""
    return float(np.exp(cross_entropy(logits, targets).mean()))


def _nats(logs: Logits, targets: NDArray[np.int64]) -> NDArray[np.float64]:
    return np.asarray(-np.take_along_axis(logs, targets[..., None], axis=-1)[..., 0])


def _nanmean(values: NDArray[np.float64], axis: int) -> NDArray[np.float64]:
    known = np.isfinite(values)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(known, values, 0.0).sum(axis=axis) / known.sum(axis=axis))


def _median(values: NDArray[np.float64]) -> float:
    known = values[np.isfinite(values)]
    return float(np.median(known)) if known.size else float("nan")
