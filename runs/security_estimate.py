# SPDX-License-Identifier: Apache-2.0
"""What known attacks on our parameter sets cost, and what each set keeps in reserve, as a card.

    python runs/security_estimate.py > docs/cards/security-estimate_202611.md

The attacks, their cost models and their sources are in lattice_attacks.py. About four minutes on an idle core.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path

from lattice_attacks import (
    MODELS,
    Instance,
    Model,
    bdd,
    drop_and_solve,
    dual,
    dual_hybrid,
    hybrid,
    matzov,
    meet_in_the_middle,
    usvp,
)

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

from heatfhe.ckks import MAX_LOG_QP, MAX_LOG_QP_BY_WEIGHT, MAX_LOG_SPARSE_MODULUS
from heatfhe.planning import preset

PUBLISHED = (
    # what, published, ours
    ("uSVP, Kyber768 (n 768, q 3329, sigma 1)", "lattice-estimator, MATZOV", 204.9,
     lambda: usvp(Instance(768, math.log2(3329), 0, 1.0), matzov, weight=768.0)),
    *((f"uniform ternary, n 2^{k}, {q} bits", "ePrint 2024/463, Table 5.2", bits,
       lambda k=k, q=q: dense(Instance(1 << k, q), matzov))
      for k, q, bits in ((13, 214, 128.0), (15, 868, 128.0), (16, 1747, 128.0), (16, 1199, 192.0))),
    *((f"weight {h}, n 2^{k}, {q} bits, plain", "ePrint 2026/279, files", bits,
       lambda k=k, q=q, h=h: hybrid(Instance(1 << k, q, h, 3.2), matzov, meet=True, ring=False))
      for k, q, h, bits in ((16, 104, 32, 176.4), (16, 118, 30, 165.3), (14, 120, 32, 122.7), (16, 1553, 192, 134.0))),
    *((f"weight {h}, n 2^{k}, {q} bits, rotations", "ePrint 2026/279, files", bits,
       lambda k=k, q=q, h=h: hybrid(Instance(1 << k, q, h, 3.2), matzov, meet=True, ring=True))
      for k, q, h, bits in ((16, 104, 32, 167.0), (16, 118, 30, 156.3), (14, 120, 32, 113.2), (16, 930, 64, 129.7),
                            (16, 1450, 128, 120.5), (16, 1553, 192, 122.6))),
    ("weight 64, n 2^16, 930 bits, rotations, no MitM", "ePrint 2026/279, files", 148.1,
     lambda: hybrid(Instance(1 << 16, 930, 64, 3.2), matzov, meet=False, ring=True)),
)  # fmt: skip


DENSE: dict[str, Callable[[Instance, Model], float]] = {"uSVP": usvp, "BDD": bdd, "dual": dual}


def dense(x: Instance, model: Model) -> float:
    """The best attack on a secret that is not sparse."""
    return min(attack(x, model) for attack in DENSE.values())


ATTACKS: dict[str, Callable[[Instance, Model], float]] = {
    "drop zeros, uSVP": drop_and_solve,
    "hybrid, guesses searched": lambda x, m: hybrid(x, m, meet=False, ring=True),
    "hybrid, guesses met in the middle": lambda x, m: hybrid(x, m, meet=True, ring=True),
    "dual hybrid, guesses searched": lambda x, m: dual_hybrid(x, m, meet=False, ring=True),
    "dual hybrid, square root for free": lambda x, m: dual_hybrid(x, m, meet=True, ring=True),
    "meet in the middle, no lattice": lambda x, m: meet_in_the_middle(x),
}


def largest_modulus(n: int, weight: int, attack: Callable[[Instance, Model], float], lo: int, hi: int) -> int:
    """The largest modulus from lo to hi, in bits, at which an attack still costs 2^128 with MATZOV's prices."""
    while lo < hi:
        mid = (lo + hi + 1) // 2
        lo, hi = (mid, hi) if attack(Instance(n, mid, weight), matzov) >= 128 else (lo, mid - 1)
    return lo


def sparse_rows(x: Instance) -> tuple[list[str], float, float]:
    """A line per attack, and the least of the attacks that are known and of all, floors included (MATZOV)."""
    rows, known, every = [], math.inf, math.inf
    for name, attack in ATTACKS.items():
        found = [attack(x, m) for m in MODELS.values()]
        floor = name in FLOORS
        rows.append(f"| {name}{' (floor)' if floor else ''} | " + " | ".join(f"{v:.1f}" for v in found) + " |")
        every = min(every, found[0])
        known = known if floor else min(known, found[0])
    return rows, known, every


FLOORS = ("dual hybrid, square root for free", "meet in the middle, no lattice")
HEAD = ["| attack | MATZOV | sieve (2018 standard) | core-SVP floor |", "|---|---|---|---|"]


def card() -> list[str]:
    """The whole card, in Markdown."""
    n = 1 << 16
    out = [
        "# What known attacks on our parameter sets cost",
        "",
        "Output of `runs/security_estimate.py`; attacks, cost models and sources are in `runs/lattice_attacks.py`.",
        "Numbers are log2 of classical operations for one success on average. Memory is free here, although an attack",
        "that meets in the middle needs about as much of it as time. Hybrid attacks use all rotations of the ring's",
        "secret (ePrint 2026/279), unless a row says plain. A floor leaves out work that every real attack has.",
        "",
        "## The estimator against published values",
        "",
        "Published hybrid values are for a success of 99 %, 2.2 bits more than one success on average.",
        "",
        "| instance | source | published | here | difference |",
        "|---|---|---|---|---|",
    ]
    for what, source, bits, ours in PUBLISHED:
        found = ours()
        out.append(f"| {what} | {source} | {bits:.1f} | {found:.1f} | {found - bits:+.1f} |")
    for name in ("native-16-r40", "native-16-r35"):
        x = Instance(n, preset(name).log_qp)
        out += [
            "",
            f"## The uniform ternary secret of `{name}`: log2 QP {x.log_q:.1f} of {MAX_LOG_QP[n][128]}",
            "",
            *HEAD,
        ]
        for attack, cost in DENSE.items():
            out.append(f"| {attack} | " + " | ".join(f"{cost(x, m):.1f}" for m in MODELS.values()) + " |")
        out += ["", f"Reserve over 128 (MATZOV): {dense(x, matzov) - 128:+.1f}."]
    bound = MAX_LOG_SPARSE_MODULUS[n]
    for name, bits in (("native-16-r40", 0.0), ("native-16-r35", 0.0), ("the bound itself", bound)):
        bits = bits or preset(name).sparse_modulus_bits
        rows, known, every = sparse_rows(Instance(n, bits, 32))
        out += ["", f"## The sparse secret, weight 32, {bits:.1f} bits of modulus: {name}", "", *HEAD, *rows, ""]
        reserve = f"{known - 128:+.1f} for the best known attack, {every - 128:+.1f} for the floors"
        out.append(f"Reserve over 128 (MATZOV): {reserve}.")
    largest = [
        (label, largest_modulus(n, 32, attack, 64, 575))
        for label, attack in (
            ("the best known attack, the hybrid with meet-in-the-middle", ATTACKS["hybrid, guesses met in the middle"]),
            ("the dual attack that takes a square root for free", ATTACKS["dual hybrid, square root for free"]),
        )
    ]
    out += ["", f"At weight 32 and N = 2^16 the bound is {bound:g} bits. 128 bits are left up to"]
    out += [
        f"{bits} bits of modulus against {label}" + (";" if i == 0 else ".") for i, (label, bits) in enumerate(largest)
    ]
    params = preset("openfhe-16")
    x = Instance(n, params.log_qp, params.secret_weight)
    rows, known, _ = sparse_rows(x)
    without = hybrid(x, matzov, meet=True, ring=False)
    limit = largest_modulus(n, params.secret_weight, ATTACKS["hybrid, guesses met in the middle"], 1300, 1555)
    claim, bounds = params.security_bits, MAX_LOG_QP_BY_WEIGHT[params.secret_weight][n]
    verdict = "holds" if known >= claim else "DOES NOT HOLD against this attack"
    out += [
        "", f"## The main secret of `openfhe-16`: weight {x.weight}, log2 QP {x.log_q:.1f}", "", *HEAD, *rows, "",
        f"Best known attack: {known:.1f} bits, {known - claim:+.1f} against the claim of {claim}, which {verdict}.",
        f"Without the ring's rotations the same attack costs {without:.1f}. The bound in use for {claim} bits is",
        f"{bounds[claim]:g}; 128 bits against the rotations would allow {limit}, the bound in use for them is "
        f"{bounds[128]:g}.",
    ]  # fmt: skip
    return out


if __name__ == "__main__":
    sys.stdout.write("\n".join(card()) + "\n")
