# SPDX-License-Identifier: Apache-2.0
"""What the CUDA kernels read beside words: primes, twiddles, constants of conversions; made once, on the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heatfhe.ckks.kernels import plans
from heatfhe.ckks.kernels.plans import Conversion, DigitPlan, Division, montgomery
from heatfhe.ckks.kernels.reference import powers
from heatfhe.ckks.primes import root_of_unity

Host = NDArray[Any]
ROW = 256  # values of a row, as in words.cuh
TILE = 16  # destinations of a tile, as in tensor_conversions.cu
TENSOR_WIDTH = 20  # sources that tensor cores take
TASK = np.dtype([("prime", "<i4"), ("in", "<i4"), ("out", "<i4"), ("extra", "<i4")])


def pairs(w: Host, q: Host) -> NDArray[np.uint32]:
    """Shoup constants (w, floor(w 2^32 / q)), side by side."""
    w, q = np.broadcast_arrays(w.astype(np.uint64), q.astype(np.uint64))
    return np.stack([w, (w << np.uint64(32)) // q], axis=-1).astype(np.uint32)


@dataclass(frozen=True, slots=True, eq=False)
class PrimeTables:
    """Constants of every prime of a chain; see transforms.cu for heads, tails and steps."""

    primes: Host  # (P, 2) q, q^-1 mod 2^32
    powers: Host  # (P, 2) 2^64, 2^32 mod q
    forward: tuple[Host, Host, Host]  # heads (P, N/16), tails (P, 4, N/16), steps (P, 8, 2)
    backward: tuple[Host, Host, Host]
    inverse_n: NDArray[np.uint64]


def prime_tables(ring_dimension: int, moduli: Sequence[int]) -> PrimeTables:
    """Twiddles of every prime, in Montgomery form."""
    q = np.array(moduli, dtype=np.uint64)
    roots = [root_of_unity(p, ring_dimension) for p in moduli]
    return PrimeTables(
        primes=np.array([[p, pow(p, -1, 1 << 32)] for p in moduli], dtype=np.uint32),
        powers=np.array([[pow(2, 64, p), pow(2, 32, p)] for p in moduli], dtype=np.uint32),
        forward=_twiddles(ring_dimension, roots, q),
        backward=_twiddles(ring_dimension, [pow(r, -1, p) for r, p in zip(roots, moduli)], q),
        inverse_n=np.array([pow(ring_dimension, -1, p) for p in moduli], dtype=np.uint64),
    )


def _twiddles(n: int, roots: Sequence[int], q: NDArray[np.uint64]) -> tuple[Host, Host, Host]:
    reversal, nodes = plans.bit_reversal(n), n // 16
    heads = np.empty((len(roots), nodes), dtype=np.uint32)
    tails = np.empty((len(roots), 4, nodes), dtype=np.uint32)
    steps = np.empty((len(roots), 8, 2), dtype=np.uint32)
    last = nodes + np.arange(nodes)
    for i, root in enumerate(roots):
        psi = powers(root, n, int(q[i]))[reversal]
        heads[i] = montgomery(psi[:nodes], q[i])
        for k in range(4):
            tails[i, k] = montgomery(psi[last << k], q[i])
        steps[i] = pairs(psi[:8], q[i])
    return heads, tails, steps


def tasks(primes: Sequence[int], source: Sequence[int], target: Sequence[int], extra: Sequence[int] = ()) -> Host:
    """Limbs of a transform: prime, limb read, limb written."""
    out = np.zeros(len(primes), dtype=TASK)
    out["prime"], out["in"], out["out"] = primes, source, target
    if len(extra):
        out["extra"] = extra
    return out


@dataclass(frozen=True, slots=True, eq=False)
class ConversionTables:
    """Conversions done in one launch."""

    heads: Host  # (conversions, 6): k, width, first source limb, first destination, destinations, first word of rows
    destinations: Host  # (all, 2): prime, limb
    rows: Host
    overflows: Host
    fixed: Host
    scales: Host  # Shoup constants of the sources, 1/N of the inverse transform included
    fragments: Host  # the rows again, as the tensor cores want them: a lane's four constants side by side
    offsets: Host  # where each conversion's fragments begin, in pairs of doubles
    most: int  # destinations of the largest conversion
    widest: int  # words of the longest row


def conversion_tables(
    conversions: Sequence[Conversion], limbs: Sequence[Sequence[int]], moduli: Sequence[int], inverse_n: Host
) -> ConversionTables:
    """Tables of conversions whose sources follow each other; limbs says where destinations are written."""
    q = np.array(moduli, dtype=np.uint64)
    heads, destinations, rows, overflows, fixed, scales, fragments, offsets = [], [], [], [], [], [], [], [0]
    first = start = words = 0
    for c, places in zip(conversions, limbs):
        k, count = len(c.src), len(c.dst)
        width = -(-k // 4) * 4
        heads.append([k, width, first, start, count, words])
        destinations += [[int(p), int(place)] for p, place in zip(c.dst, places)]
        row = np.zeros((count, width), dtype=np.uint32)
        row[:, :k] = montgomery(c.matrix, q[c.dst][:, None])
        rows.append(row.reshape(-1))
        fragments.append(_fragments(row, q[c.dst]))
        offsets.append(offsets[-1] + fragments[-1].size // 2)
        overflows.append(montgomery((q[c.dst] - c.modulus) % q[c.dst], q[c.dst]))
        fixed.append(c.fixed.astype(np.uint32))
        p = q[c.src]
        scales.append(pairs(c.inverse.astype(np.uint64) * inverse_n[c.src] % p, p))
        first, start, words = first + k, start + count, words + count * width
    return ConversionTables(
        heads=np.array(heads, dtype=np.int32),
        destinations=np.array(destinations, dtype=np.int32).reshape(-1, 2),
        rows=np.concatenate(rows),
        overflows=np.concatenate(overflows),
        fixed=np.concatenate(fixed),
        scales=np.concatenate(scales),
        fragments=np.concatenate(fragments),
        offsets=np.array(offsets[:-1], dtype=np.int64),
        most=max(int(h[4]) for h in heads),
        widest=max(int(h[1]) for h in heads),
    )


def _fragments(rows: NDArray[np.uint32], q: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Rows (destinations, width) in the order of tensor_conversions.cu: tile, step of eight halves, lane, constant.

    Half 2i of a row multiplies the low 16 bits of source i, half 2i + 1 its other bits.
    """
    count, width = rows.shape
    tiles = -(-count // TILE)
    halves = np.zeros((tiles * TILE, 2 * width), dtype=np.float64)
    halves[:count, 0::2] = rows
    halves[:count, 1::2] = (rows.astype(np.uint64) << np.uint64(16)) % q[:, None]
    lane, constant = np.meshgrid(np.arange(32), np.arange(4), indexing="ij")
    row, column = lane // 4 + 8 * (constant % 2), lane % 4 + 4 * (constant // 2)
    parts = halves.reshape(tiles, TILE, width // 4, 8)
    return np.ascontiguousarray(parts.transpose(0, 2, 1, 3)[:, :, row, column]).reshape(-1)


@dataclass(frozen=True, slots=True, eq=False)
class DigitTables:
    """mod_up: inverse transform, conversion of every digit, forward transform of what was converted."""

    source: Host  # tasks
    conversions: ConversionTables
    target: Host  # tasks
    own: NDArray[np.int32]  # (beta, E): the source's limb, or -1


def digit_tables(plan: DigitPlan, moduli: Sequence[int], inverse_n: Host) -> DigitTables:
    """Digit j, limb e is written at j E + e."""
    extended = [int(p) for p in plan.extended]
    place = {int(p): i for i, p in enumerate(plan.rows)}
    own = np.full((len(plan.conversions), len(extended)), -1, dtype=np.int32)
    limbs: list[list[int]] = []
    for j, c in enumerate(plan.conversions):
        mine = {int(p) for p in c.src}
        for e, p in enumerate(extended):
            if p in mine:
                own[j, e] = place[p]
        limbs.append([j * len(extended) + e for e, p in enumerate(extended) if p not in mine])
    targets = [(p, limb) for c, part in zip(plan.conversions, limbs) for p, limb in zip(c.dst, part)]
    places = list(range(len(plan.rows)))
    return DigitTables(
        source=tasks(plan.rows.tolist(), places, places),
        conversions=conversion_tables(plan.conversions, limbs, moduli, inverse_n),
        target=tasks([int(p) for p, _ in targets], [t for _, t in targets], [t for _, t in targets]),
        own=own,
    )


@dataclass(frozen=True, slots=True, eq=False)
class DivisionTables:
    """divide: inverse transform of what leaves, conversion, forward transform, x * lift - remainder."""

    leaving: Host  # tasks
    conversions: ConversionTables
    target: Host  # tasks; extra is the kept limb or -1
    lifts: Host


def division_tables(plan: Division, moduli: Sequence[int], inverse_n: Host) -> DivisionTables:
    """Tables of one division."""
    c = plan.conversion
    places = list(range(len(c.dst)))
    q = np.array(moduli, dtype=np.uint64)[c.dst]
    return DivisionTables(
        leaving=tasks(c.src.tolist(), plan.leave.tolist(), list(range(len(c.src)))),
        conversions=conversion_tables([c], [places], moduli, inverse_n),
        target=tasks(c.dst.tolist(), places, places, plan.keep.tolist()),
        lifts=pairs(plan.lift, q),
    )
