# SPDX-License-Identifier: Apache-2.0
"""What a bootstrap keeps on this machine, measured with throwaway keys: both halves of an engine in one process."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from heatfhe.engine import Engine, Keyring


def kept_bits(engine: Engine[Any], ring: Keyring) -> float:
    """-log2 of the largest error of three refreshes: of random reals, of a pair, and of the constant one (the worst
    case of the modular reduction).

    Nothing of it is meant for a server. Compare it with params.promised_bits.
    """
    slots, rng = engine.params.slots, np.random.default_rng(0)
    random, other, ones = rng.uniform(-1, 1, slots), rng.uniform(-1, 1, slots), np.ones(slots)
    a, b, one = (engine.parse(ring.encrypt(v, level=0)) for v in (random, other, ones))
    pair = engine.bootstrap_pair(a, b, period=slots, bound=1.0)
    results = [
        (engine.bootstrap(a, period=slots, bound=1.0), random),
        (pair[0], random),
        (pair[1], other),
        (engine.bootstrap(one, period=slots, bound=1.0), ones),
    ]
    worst = max(float(np.abs(ring.decrypt(engine.dump(got)) - wanted).max()) for got, wanted in results)
    return -math.log2(max(worst, 2.0**-60))
