# SPDX-License-Identifier: Apache-2.0
"""What prices could save on GPT-2 small: the stairs of a token around HEAT's counts, and the best counts of one sum.

    python runs/stairs_gpt2_small.py [--params native-16-r40-lean] [--reach 6] [--processes 2] [--solver relaxed]
    python runs/stairs_gpt2_small.py --solver relaxed --reach 0 --sums 0      # the token alone

Counts, scores and sums of every softmax are those that HEAT ended with (docs/cards/encrypted-gpt2_h200_202611.json);
the card has norms by their total alone, and those two iterations above one each go to the last norms. Every softmax is
planned alone at up to --reach iterations more and fewer in its two reciprocals together. Taking layers for independent,
the cheapest counts with a given sum over all softmaxes follow, and each of them is then planned as a whole. At the same
sum they say what knowing prices is worth, if iterations cost as much perplexity in one layer as in another.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

from gpt2_small_fixture import gpt2_small, norm

from heatfhe.approx import ReciprocalFit, SoftmaxFit, fit_exponential, smallest_deltas
from heatfhe.circuit import Circuit
from heatfhe.planning import IterationPrices, cost_table, preset
from heatfhe.planning.stairs import Price, changed, cheapest
from heatfhe.records import Domain, SoftmaxCalibration

CARD = Path(__file__).parent.parent / "docs/cards/encrypted-gpt2_h200_202611.json"
SUMS = "0,-4,-8,-16,-32"
PUSHED = 2  # norms with a second iteration: 27 over 25


def softmax(name: str, seen: Mapping[str, Any], solver: str) -> SoftmaxCalibration:
    """A softmax as the card describes it: the width of its scores, and the logarithms of its sums' least and end."""
    half = seen["width"] / 2
    delta_1, delta_2 = smallest_deltas(2 * half)
    exponential = fit_exponential(half / (delta_1 * delta_2), 8, delta_1.bit_length() - 1)
    init = ReciprocalFit(lo=math.exp(seen["seen"][0]), hi=math.exp(seen["end"]), solver=solver)
    refine = ReciprocalFit(lo=0.5, hi=1024.0, solver=solver)
    fit = SoftmaxFit(
        lo=-half, hi=half, delta_1=delta_1, delta_2=delta_2, exponential=exponential, init=init, refine=refine
    )
    observed, sums = Domain(lo=-half, hi=half, how="observed"), Domain(lo=init.lo, hi=init.hi, how="observed")
    init_count, refine_count = seen["counts"]
    return SoftmaxCalibration(
        name=name, fit=fit, init_count=init_count, refine_count=refine_count, observed=observed, observed_init=sums
    )


def trained(solver: str) -> Circuit:
    """GPT-2 small's shape with HEAT's counts."""
    circuit = gpt2_small("heat")
    made = json.loads(CARD.read_text())["train" if solver == "plain" else "relaxed"]
    sums = next(part for part in made if part["what"] == "exported")["sums"]
    names = list(circuit.calibration.norms)
    norms = {name: norm(name, 2 if name in names[-PUSHED:] else 1, 0) for name in names}
    softmaxes = {name: softmax(name, seen, solver) for name, seen in sums.items()}
    return replace(circuit, calibration=replace(circuit.calibration, norms=norms, softmaxes=softmaxes))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--params", default="native-16-r40-lean", help="parameter set (default native-16-r40-lean)")
    parser.add_argument("--costs", default="native-16-r40-lean-h200", help="prices (default native-16-r40-lean-h200)")
    parser.add_argument("--reach", type=int, default=6, help="iterations more and fewer in a softmax (default 6)")
    parser.add_argument("--sums", default=SUMS, help=f"changes of the sum that are planned (default {SUMS})")
    parser.add_argument("--solver", choices=("plain", "relaxed"), default="plain", help="of softmaxes (default plain)")
    parser.add_argument("--processes", type=int, default=1)
    args = parser.parse_args()
    circuit = trained(args.solver)
    most = args.reach * len(circuit.calibration.softmaxes)
    asked_sums = [int(word) for word in args.sums.split(",")]
    if far := [by for by in asked_sums if abs(by) > most]:
        parser.error(f"--sums {far[0]} is out of reach: with --reach {args.reach} all softmaxes move by {most} at most")
    calibration, counts = circuit.calibration, circuit.calibration.counts()
    prices = IterationPrices(
        stages=circuit.stages, shape=circuit.shape, params=preset(args.params), context=128,
        cost=cost_table(args.costs), processes=args.processes,
    )  # fmt: skip
    now = prices.tokens([counts], calibration)[0]
    total, steps = sum(calibration.iterations().values()), range(-args.reach, args.reach + 1)
    print(f"a token up to its logits: {now.bootstraps} refreshes, {now.seconds:.4f} s, {total} iterations")
    heads = ["softmax", "counts", *(f"{by:+d}" for by in steps)]
    print(f"\n| {' | '.join(heads)} |\n{'|---' * len(heads)}|")
    saved: dict[str, dict[int, Price]] = {}
    for name in calibration.softmaxes:
        found = prices.tokens([changed(counts, {name: by}) for by in steps], calibration)
        saved[name] = {
            by: (t.seconds - now.seconds, float(t.bootstraps - now.bootstraps)) for by, t in zip(steps, found)
        }
        cells = [f"{1e3 * seconds:+.1f} ({refreshes:+.0f})" for seconds, refreshes in saved[name].values()]
        own = " + ".join(str(counts[f"{name}/{part}"]) for part in ("init", "refine"))
        print(f"| {name} | {own} | {' | '.join(cells)} |", flush=True)
    print("\nms of a token (and refreshes) by iterations more or fewer in one softmax")
    asked = [(0, reach) for reach in range(1, args.reach)]
    asked += [(by, args.reach) for by in asked_sums]
    for first, what in enumerate(("seconds", "refreshes")):
        print(f"\n| fewest {what} at | changed by at most | planned, s | refreshes | changes |\n|---|---|---|---|---|")
        for sum_by, reach in asked:
            within = {
                name: {by: (price[first], price[1 - first]) for by, price in own.items() if abs(by) <= reach}
                for name, own in saved.items()
            }
            moves = cheapest(within)[sum_by][1]
            token = prices.tokens([changed(counts, moves)], calibration)[0]
            seconds, refreshes = token.seconds / now.seconds - 1, token.bootstraps / now.bootstraps - 1
            each = " ".join(f"{by:+d}" for by in moves.values())
            print(
                f"| {total + sum_by} iterations | {reach} | {token.seconds:.4f} ({seconds:+.1%}) | {token.bootstraps} "
                f"({refreshes:+.1%}) | {each} |", flush=True,
            )  # fmt: skip
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
