# SPDX-License-Identifier: Apache-2.0
"""What a client uploads for a GPT-2-small plan: by baby steps of CoeffsToSlots, by levels of keys, by rotation.

    python runs/key_bytes.py [--counts heat] [--params native-16-r40-lean] [--rotations]

Nothing is encrypted. Milliseconds are counts of key switches at two prices, a hoisted one and one with its own
decomposition, fitted to one measurement on an H200 (16 and 8 baby steps at full slots): they rank splits, no more.
``--rotations`` lists the keys that a plan alone needs, with their uses in a token, and what would be saved by making
rarely used rotations of two others.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from gpt2_small_fixture import gpt2_small

from heatfhe.ckks import Params, key_ids, native_set, upload_bytes
from heatfhe.ckks.keys import GALOIS, KeyId, galois_element
from heatfhe.planning import Plan, plan, preset

HOISTED, WHOLE = 0.035, 0.2  # ms at the levels of CoeffsToSlots
RARE = 3.0  # uses in a token


def with_words(params: Params, **words: object) -> Params:
    """The same set with other optional words; None and False leave a word out."""
    literal = {**dict(params.literal), **words}
    return replace(params, literal=tuple(sorted((k, v) for k, v in literal.items() if v)))


def switches(params: Params, period: int) -> tuple[int, int]:
    """Hoisted key switches and whole ones of one refresh, SlotsToCoeffs left out: it runs where they cost little."""
    native = native_set(params)
    parts = native.bootstrap.coeffs_to_slots(native.chain, period)
    groups = native.bootstrap.trace(native.chain, period)
    hoisted = sum(len({b for row in part.giants.values() for b in row} - {0}) for part in parts)
    whole = sum(len(set(part.giants) - {0}) for part in parts)
    return hoisted + sum(len(group) - 1 for group in groups), whole + len(groups)


def splits(made: Plan) -> None:
    """One line for each number of baby steps: keys, bytes, and key switches of a token's refreshes."""
    refreshes = Counter(s.period for s in made.program("generate").bootstraps())
    print("baby steps  keys  tall  GiB, one height  GiB, by level  hoisted and whole switches by period; ms per token")
    for babies in (0, 16, 8, 4, 2):
        sizes, counts = [], {}
        for by_level in (False, True):
            bound = replace(made, params=with_words(made.params, cts_babies=babies, key_levels=by_level))
            native = native_set(bound.params)
            ids = keys_of(bound)
            sizes.append(upload_bytes(native, ids) / 2**30)
            counts = {p: switches(bound.params, p) for p in sorted(refreshes)}
        tall = sum(k.cap > native.top for k in ids)
        ms = sum(refreshes[p] * (HOISTED * h + WHOLE * w) for p, (h, w) in counts.items())
        told = ", ".join(f"{p}: {h}+{w}" for p, (h, w) in counts.items())
        name = str(babies) if babies else "no word"
        print(f"{name:>10}  {len(ids):4}  {tall:4}  {sizes[0]:15.3f}  {sizes[1]:13.3f}  {told}; {ms:.0f}", flush=True)


def keys_of(made: Plan) -> tuple[KeyId, ...]:
    """Every evaluation key of a plan."""
    return key_ids(
        native_set(made.params), made.rotations, made.conjugation, made.bootstrap_periods, made.rotation_levels
    )


def uses(made: Plan, program: str) -> Counter[int]:
    """How often a token asks for each rotation; one that goes by the position counts by its share of positions."""
    out: Counter[int] = Counter()
    for step in made.program(program).steps:
        by = made.products[step.product].rotations if step.kind == "linear" else step.by
        if step.modulus:
            by = tuple(step.by[0] * k for k in range(step.modulus))
        for k in by:
            out[k % made.params.slots] += 1 / step.modulus if step.modulus else 1  # type: ignore[assignment]
    return out


def rotations(made: Plan) -> None:
    """The keys that no refresh needs, with uses and bytes; then those that two others could stand for."""
    native, slots = native_set(made.params), made.params.slots
    caps = {k.element: k for k in keys_of(made) if k.kind == GALOIS}
    keys = {k: caps[galois_element(k, made.params.ring_dimension)] for k in range(1, slots) if galois_element(
        k, made.params.ring_dimension) in caps}  # fmt: skip
    own = {k for p in made.bootstrap_periods for k in native.bootstrap.rotations(native.chain, p)}
    found = uses(made, "generate")
    size = {k: upload_bytes(native, [key]) / 2**20 for k, key in keys.items()}
    alone = [k for k in keys if k not in own]
    print(f"\n{len(alone)} rotations that only the plan uses, {sum(size[k] for k in alone):.0f} MiB")
    print("highest level  uses in a token  MiB each  rotations (negative to the left)")
    rows = Counter((keys[k].cap - native.floor, round(found[k], 1), size[k]) for k in alone)
    for level, count, each in sorted(rows, reverse=True):
        same = [k for k in alone if (keys[k].cap - native.floor, round(found[k], 1), size[k]) == (level, count, each)]
        print(
            f"{level:13}  {count:15g}  {each:8.2f}  {' '.join(str(k if k <= slots // 2 else k - slots) for k in same)}"
        )
    dropped = composed(keys, found, slots)
    more = sum(found[k] for k in dropped)
    saved = sum(size[k] for k in dropped)
    print(
        f"\nrotations of at most {RARE:g} uses that two kept ones make: {len(dropped)}, {saved:.0f} MiB, "
        f"for {more:.0f} key switches a token more if none is shared; "
        f"{(upload_bytes(native, keys_of(made)) / 2**20 - saved) / 2**10:.3f} GiB would be left"
    )


def composed(keys: Mapping[int, KeyId], found: Mapping[int, float], slots: int) -> list[int]:
    """Rotations, the rarest first, that are sums of two others which reach as high and are kept."""
    kept, needed, out = set(keys), set(), []
    for k in sorted(keys, key=lambda k: (found.get(k, 0.0), -keys[k].cap, -k)):
        if k in needed or not 0 < found.get(k, 0.0) <= RARE:
            continue
        level = keys[k].cap
        for a in sorted(kept - {k}, key=lambda a: (a not in needed, a)):
            b = (k - a) % slots
            if b in kept and b != k and min(keys[a].cap, keys[b].cap) >= level:
                needed |= {a, b}
                kept.discard(k)
                out.append(k)
                break
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--counts", default="heat", choices=("heat", "calibrated"))
    parser.add_argument("--params", default="native-16-r40-lean")
    parser.add_argument("--rotations", action="store_true", help="list the rotations that only the plan uses")
    args = parser.parse_args()
    made = plan(gpt2_small(args.counts), preset(args.params), context=128, mlp="A")
    splits(made)
    if args.rotations:
        rotations(made)


if __name__ == "__main__":
    main()
