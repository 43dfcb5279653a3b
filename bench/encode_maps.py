# SPDX-License-Identifier: Apache-2.0
"""What encoding a linear map costs: its diagonals at once, read from the matrix, beside one slot vector at a time.

    python bench/encode_maps.py [--params insecure-native-12] [--device cpu] [--width 128] [--diagonals 32]
    python bench/encode_maps.py --params native-16-r40-lean --device cuda --width 768 --diagonals 256

The matrix is random, laid out as many tokens at once have theirs (planning/programs/packed.py). Both ways encode the
same diagonals at the set's top level and the special primes, ready to be multiplied, and must give the same polynomials
but for the rounding of single coefficients. The peer is the way every engine of ours had before.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

from heatfhe.ckks import Ring, SlotMatrix, diagonal, native_set
from heatfhe.ckks.kernels import load_kernels
from heatfhe.planning import preset

CHECKED = 8  # diagonals that are compared


def layouts(width: int, slots: int) -> tuple[np.ndarray, np.ndarray]:
    """Row and column of every slot: entry i of token c at slot i * t + c."""
    padded = 1 << (width - 1).bit_length()
    entry = np.repeat(np.arange(padded), slots // padded)
    return np.where(entry < width, entry, -1), np.where(entry < width, entry, -1)


def seconds(run: Callable[[], Any], kernels: Any, repeats: int) -> float:
    """Median time of one run, the device's work included."""
    found = []
    for _ in range(repeats + 1):
        began = time.perf_counter()
        run()
        kernels.synchronize()
        found.append(time.perf_counter() - began)
    return statistics.median(found[1:])  # the first makes tables


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--params", default="insecure-native-12", help="default insecure-native-12")
    parser.add_argument("--device", default="cpu", help="cpu (default), cuda or reference")
    parser.add_argument("--width", type=int, default=128, help="of the matrix (default 128)")
    parser.add_argument("--diagonals", type=int, default=32, help="that are encoded (default 32)")
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    params = preset(args.params)
    chain = native_set(params).chain
    kernels = load_kernels(args.device, chain.ring_dimension, chain.moduli)
    ring, rng = Ring(chain, kernels), np.random.default_rng(0)
    level = len(ring.scales) - 1
    rows, scale = ring.extended(level), 2.0**40
    matrix = rng.uniform(-1, 1, (args.width, args.width)) / args.width
    step = params.slots >> (args.width - 1).bit_length()
    matrices = [SlotMatrix(matrix, *layouts(args.width, params.slots), 0.5)]
    turns = [(step * (i & -8), step * (i & 7)) for i in range(args.diagonals)]

    def at_once() -> Any:
        return kernels.diagonals(matrices, turns, scale, rows)

    def one_by_one() -> Any:
        return kernels.stack([ring.plaintext(diagonal(matrices, *turn), scale, rows) for turn in turns])

    made, wanted = at_once(), one_by_one()
    one = kernels.evaluate(np.eye(1, chain.ring_dimension, dtype=np.int64)[0], rows)
    for i in range(min(CHECKED, args.diagonals)):
        a, b = (
            kernels.coefficients(kernels.product(one, kernels.polynomial(x, i), rows), rows).astype(np.int64)
            for x in (made, wanted)
        )
        q = np.array([chain.moduli[r] for r in rows])[:, None]
        if np.abs((a - b + q // 2) % q - q // 2).max() > 1:
            raise SystemExit(f"diagonal {i} differs by more than a rounding: nothing is timed")
    del made, wanted
    ours, peer = (seconds(run, kernels, args.repeats) for run in (at_once, one_by_one))
    each, size = ours / args.diagonals, 4 * len(rows) * chain.ring_dimension
    print(
        f"a map of {args.diagonals} diagonals, N=2^{chain.ring_dimension.bit_length() - 1}, {len(rows)} limbs | "
        f"at once {1e3 * ours:.2f} ms, {1e6 * each:.0f} us a diagonal, {size / each / 2**30:.1f} GiB/s | one by one "
        f"{1e3 * peer:.2f} ms | ours/peer {ours / peer:.2f} | median of {args.repeats} | {kernels.device_name}"
    )


if __name__ == "__main__":
    main()
