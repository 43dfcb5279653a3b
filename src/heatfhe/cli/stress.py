# SPDX-License-Identifier: Apache-2.0
"""heat stress: does a circuit hold on whatever a user types? Needs no torch."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from heatfhe.assets import sampled_stories
from heatfhe.cli.console import Console
from heatfhe.cli.model_source import circuit_tokens, text_circuit
from heatfhe.errors import ConfigError
from heatfhe.evaluation import STRESS_HEADERS, hard_of_circuit, stress_circuit, stress_rows, text_rows
from heatfhe.odd import HARD, KINDS, check_kinds

HELP = """Run a circuit on windows no text looks like (random, shuffled, repeated, replaced tokens, runs) and on texts.

A window diverges when its logits are lost: a user who types such a text gets nothing of use, and the server cannot
know. One that leaves a domain was lucky. A faint window has a position whose choice of a word is below half of a clean
one: what is fed back there is a weak copy of it. Shuffled and replaced windows and runs need a text (the default model
has its own); the excess is in widths of the domain."""
EXAMPLES = """  heat stress default
  heat stress out/heat/circuit code.txt letters.txt tokens.npy --windows 200
  heat stress default --kinds random,repeated,hard --positions 32 --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own options."""
    parser.add_argument("circuit", help="circuit directory, 'default' or 'default-calibrated'")
    parser.add_argument("texts", nargs="*", type=Path, metavar="TEXT", help="text files, or .npy of token ids")
    parser.add_argument("--windows", type=int, default=30, help="of each kind, and of each text at most (default 30)")
    parser.add_argument("--positions", type=int, help="tokens of a window (default: the circuit's context)")
    parser.add_argument(
        "--kinds",
        default=",".join(KINDS),
        help=f"those to run (default {','.join(KINDS)}; also {HARD}: patterns of the tokens that the circuit bears "
        "worst, for which every token of the vocabulary is tried first)",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the odd windows (default 0)")
    parser.add_argument("--batch", type=int, default=8, help="windows at a time (default 8)")


def run(args: argparse.Namespace, console: Console) -> int:
    """Load, run, print; the exit code says whether the work was done, not what it found."""
    circuit = text_circuit(args.circuit)
    positions = args.positions or circuit.room
    if not 2 <= positions <= circuit.room:
        raise ConfigError(f"--positions lies between 2 and the circuit's context of {circuit.room}")
    if args.windows < 1 or args.batch < 1:
        raise ConfigError(f"--windows and --batch are at least 1, got {args.windows} and {args.batch}")
    texts = {
        path.name: text_rows(str(path), circuit_tokens(path, circuit), positions, args.windows) for path in args.texts
    }
    own = next(iter(texts.values()), None)
    if own is None and args.circuit.startswith("default"):
        own = text_rows(
            "the stories", np.asarray(circuit.encode("\n".join(sampled_stories()[:200]))), positions, args.windows
        )
        texts = {"stories": own}
    kinds = args.kinds.split(",")
    check_kinds(kinds)
    hard = hard_of_circuit(circuit, reporter=console.reporter) if HARD in kinds else None
    rows = stress_rows(own, circuit.shape.vocabulary, positions, args.windows, seed=args.seed, kinds=kinds, hard=hard)
    found = stress_circuit(circuit, {**rows, **texts}, batch=args.batch, reporter=console.reporter)
    console.print(f"circuit {circuit.name}: windows of {positions} tokens, no guards, float64")
    console.table(STRESS_HEADERS, [s.row() for s in found])
    if own is None:
        console.print("no text was given: nothing was shuffled, no tokens were replaced")
    if lost := sum(s.diverged for s in found):
        console.warn(
            f"{lost} windows of {sum(s.windows for s in found)} diverge: on such input the circuit gives nothing of "
            "use. Train it with odd windows (heat train --odd 0.1) and with text like yours (--also TEXT)"
        )
    console.json({"circuit": circuit.name, "digest": circuit.digest, "stress": [s.as_json() for s in found]})
    return 0
