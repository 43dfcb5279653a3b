# SPDX-License-Identifier: Apache-2.0
"""The argmax's part of a calibration: a schedule for logits and for logits plus sampling noise, near ties counted."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from heatfhe.approx import ARGMAX_POWERS, ArgmaxSchedule, cutmax, fit_schedule, gumbel_noise, shorten
from heatfhe.errors import ConfigError, SiteError
from heatfhe.records import ArgmaxCalibration

# Orders of one sharpening, tried in turn. Where a row's most negative entries lie far out, a first 9 puts them away.
ORDERS = (ARGMAX_POWERS, (9, 3, 3, 3, 7))
MAX_TEMPERATURE = 1.0  # sampling up to this temperature is calibrated for, unless told otherwise

Rows = NDArray[np.floating]


def sampled_rows(row: Rows, temperature: float, rng: np.random.Generator) -> Rows:
    """What an argmax meets where these logits are sampled: the row, and it plus noise at half and at full temperature.

    Domain  one row; temperature 0 gives the row alone.
    Bound   |noise| <= temperature * gumbel_bound(size).
    Depth   none: calibration only.
    Source  ours.
    """
    if not 0.0 <= temperature <= 100.0:
        raise ConfigError(f"argmax: a temperature lies in [0, 100], got {temperature:g}")
    shares = (0.5, 1.0) if temperature else ()
    return np.stack([row, *(row + gumbel_noise(rng, row.size, part * temperature) for part in shares)])


def fit_argmax(
    logits: Any,
    *,
    weights: Rows | None = None,
    temperature: float = 0.0,
    margin: float = 1.2,
    solver: str = "plain",
    settle: int = 0,
) -> ArgmaxCalibration:
    """A schedule for rows like these; ``weights`` says how many logits each column stands for (see ``shorten``).

    ``temperature`` is the highest whose noise is in the rows (see ``sampled_rows``); it is stated with the schedule. Of
    ORDERS it is the first that keeps the leader of every row, or the one that keeps most. ``settle`` rounds after it
    each double the sharpening, so that fewer rows end as a mixture of two words.

    Domain  at least one row of at least two entries, finite, none constant.
    Bound   near_ties is the fraction of rows whose runner-up ends above a tenth of the leader.
    Depth   schedule.levels.
    Source  Avitan et al. 2025 (CutMax); the paper, encrypted argmax.
    """
    best: tuple[float, ArgmaxCalibration] | None = None
    for powers in ORDERS:
        try:
            with np.errstate(divide="raise", invalid="raise"):
                schedule = fit_schedule(
                    logits, weights=weights, powers=powers, margin=margin, solver=solver, settle=settle
                )
        except (ConfigError, ArithmeticError) as err:
            if str(err).startswith("argmax:"):
                raise
            words = f"no schedule sharpens these logits ({err}); {_furthest(logits, weights)}"
            raise SiteError("argmax", words) from err
        kept, ties = _judged(np.asarray(logits, dtype=np.float64), weights, schedule)
        smallest = min(r.leader for r in schedule.rounds)
        made = ArgmaxCalibration(schedule=schedule, temperature=temperature, near_ties=ties, smallest_leader=smallest)
        if best is None or kept > best[0]:
            best = kept, made
        if kept == 1.0:
            break
    assert best is not None
    return best[1]


def _furthest(logits: Any, weights: Rows | None) -> str:
    """How far from its row's mean the furthest entry lies, and what to do about it."""
    rows = np.asarray(logits, dtype=np.float64)
    held = np.ones(rows.shape[1]) if weights is None else weights
    size = held.sum()
    apart = rows - (rows @ held / size)[:, None]
    furthest = np.abs(apart).max(axis=1) / np.sqrt(apart**2 @ held / size)
    return (
        f"an entry lies {furthest.max():.2g} standard deviations from the mean of its {size:.0f}: look for a token "
        "with an outsized embedding"
    )


def _judged(rows: Rows, weights: Rows | None, schedule: ArgmaxSchedule) -> tuple[float, float]:
    """Fractions of rows that keep their leader (an equal one counts as such), and that end near a tie."""
    x, held = shorten(rows) if weights is None else (rows, weights)
    size = held.sum()
    with np.errstate(over="ignore", invalid="ignore"):
        ends = cutmax(x, schedule, mean=lambda v: (v @ held)[:, None] / size, size=int(size))
    ends = np.nan_to_num(ends, nan=0.0, posinf=0.0, neginf=0.0)
    led = np.take_along_axis(ends, x.argmax(axis=1)[:, None], axis=1)[:, 0]
    two = np.partition(ends, -2, axis=1)[:, -2:]
    kept = (led > 0.0) & (led >= two[:, 1] * (1.0 - 1e-9))
    return float(np.mean(kept)), float(np.mean(two[:, 0] > 0.1 * two[:, 1]))
