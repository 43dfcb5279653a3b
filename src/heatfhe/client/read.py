# SPDX-License-Identifier: Apache-2.0
"""Reading decrypted outputs. What is found here stays here: no value, and no failure, goes back to the server."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from heatfhe.errors import DecryptError
from heatfhe.records import FAINT_LEADER

Real = NDArray[np.float64]
NO_RETRY = "The client does not retry, because a retry would reveal the failure. Run it again if you accept that leak."
LEAST_LEADER, LARGEST_ENTRY, LARGEST_LOGIT = 0.02, 4.0, 1e6


def read_token(row: Real, position: int) -> tuple[int, bool]:
    """The word a near one-hot row names, and whether it was a near tie (runner-up above half of the leader).

    A row that is not finite, has no leader or entries far beyond one is implausible: the encrypted run collapsed. Only
    the position is named.
    """
    leader = float(row.max()) if np.isfinite(row).all() else 0.0
    if leader < LEAST_LEADER or float(np.abs(row).max()) > LARGEST_ENTRY:
        raise DecryptError(f"the output at position {position} is not a plausible choice of one word. {NO_RETRY}")
    second = float(np.partition(row, -2)[-2])
    return int(np.argmax(row)), second > 0.5 * leader


def is_faint(row: Real) -> bool:
    """Whether a plausible row is a faint choice: what the server fed back is a weak copy of the word."""
    return float(row.max()) < FAINT_LEADER


def read_logits(row: Real, position: int) -> Real:
    """Logits, if they are plausible numbers."""
    if not np.isfinite(row).all() or float(np.abs(row).max()) > LARGEST_LOGIT:
        raise DecryptError(f"the logits at position {position} are not plausible. {NO_RETRY}")
    return row


def round_to_bits(values: Real, bits: float) -> Real:
    """Values rounded to their trusted bits, for a user who publishes them (IND-CPA^D: raw decryptions leak the key).

    Domain  finite values, bits of the engine's promise.
    Bound   each result is a multiple of 2^-floor(bits); the change is at most half of that.
    Depth   0.
    Source  Li and Micciancio, ePrint 2020/1533; rounding as mitigation in the libraries that follow it.
    """
    grid = 2.0 ** np.floor(bits)
    return np.asarray(np.round(values * grid) / grid)
