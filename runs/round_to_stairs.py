# SPDX-License-Identifier: Apache-2.0
"""A circuit's counts rounded to the stairs of its plan: what a bootstrap fewer costs in perplexity, weights untouched.

    python runs/round_to_stairs.py default [--params insecure-openfhe-12] [--within 0.01] [--windows 16] [--out DIR]

Plans price the counts (a token up to its logits). The text is the one that heat train takes for the default model, or
--tokens, a one-dimensional .npy. Its last --held-out windows, those that heat compare judges by, judge the result; the
--windows before them, the end of what was trained on, guard it. A saving counts if it is at least --least of the mean
price of a bootstrap. Prints the moves and one JSON line; --out saves the circuit.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

from heatfhe.cli.model_source import load_text, model_folder, text_circuit
from heatfhe.models import encoder
from heatfhe.planning import IterationPrices, preset
from heatfhe.search import Batched, Space, round_to_stairs
from heatfhe.training import cut


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("circuit")
    parser.add_argument("--params", default="insecure-openfhe-12")
    parser.add_argument("--tokens", type=Path)
    parser.add_argument("--windows", type=int, default=16, help="that guard")
    parser.add_argument("--held-out", type=int, default=32, help="windows that judge")
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--within", type=float, default=0.01, help="of the circuit's own perplexity")
    parser.add_argument("--least", type=float, default=0.5)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, help="folder for the rounded circuit")
    args = parser.parse_args()
    circuit = text_circuit(args.circuit)
    if args.tokens is None:
        encode, stop = encoder(model_folder("default"))
        windows = load_text(None, "default", encode, args.context, stop)
    else:
        windows = cut(np.load(args.tokens), args.context)
    before, judged = windows.split(args.held_out)
    guard, judge = before.rows[-args.windows :], judged.rows
    names = tuple(circuit.calibration.counts())
    prices = IterationPrices(
        stages=circuit.stages, shape=circuit.shape, params=preset(args.params), context=args.context,
        processes=args.processes,
    )  # fmt: skip
    batched = Batched(circuit, guard[:, :-1], names, device=args.device)

    def price(wanted: Sequence[Mapping[str, int]]) -> list[float]:
        return [token.seconds for token in prices.tokens(wanted, circuit.calibration)]

    def loss(wanted: Sequence[Mapping[str, int]]) -> list[float]:
        counts = np.array([[c[name] for name in names] for c in wanted], dtype=np.int64)
        return [float(v) for v in batched.nats(counts, guard[:, 1:])]

    own = circuit.calibration.counts()
    floors = dict(zip(Space.of(circuit).names, Space.of(circuit).lower))
    floors = {name: min(own[name], floors.get(name, own[name])) for name in own}
    start = prices.tokens([own], circuit.calibration)[0]
    limit = loss([own])[0] + math.log1p(args.within)
    found = round_to_stairs(
        own, floors, price=price, loss=loss, limit=limit, least=args.least * start.seconds / start.bootstraps
    )
    end = prices.tokens([found.counts], circuit.calibration)[0]
    for move in found.moves:
        print("  ".join(f"{name} {by:+d}" for name, by in move.items()), file=sys.stderr)
    judges = Batched(circuit, judge[:, :-1], names, device=args.device)
    ends = np.array([[c[name] for name in names] for c in (own, found.counts)], dtype=np.int64)
    perplexity = [round(math.exp(v), 4) for v in judges.nats(ends, judge[:, 1:])]
    line = {
        "circuit": circuit.name, "params": args.params, "within": args.within, "moves": len(found.moves),
        "iterations": [sum(circuit.calibration.with_counts(c).iterations().values()) for c in (own, found.counts)],
        "bootstraps": [start.bootstraps, end.bootstraps], "seconds": [start.seconds, end.seconds],
        "held_out_perplexity": perplexity, "losses_measured": found.judged,
        "guard_perplexity": [round(math.exp(v), 4) for v in (limit - math.log1p(args.within), found.loss)],
    }  # fmt: skip
    print(json.dumps(line))
    if args.out is not None:
        circuit.with_counts(found.counts).save(args.out)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
