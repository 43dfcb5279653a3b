# SPDX-License-Identifier: Apache-2.0
"""heat stress: does a circuit hold on whatever a user types? Needs no torch."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from heatfhe.assets import sampled_stories
from heatfhe.circuit import Circuit
from heatfhe.cli.console import Console
from heatfhe.cli.model_source import circuit_folder
from heatfhe.errors import ConfigError, DataError
from heatfhe.evaluation import STRESS_HEADERS, stress_circuit, stress_rows, text_rows
from heatfhe.odd import KINDS

HELP = """Run a circuit on windows no text looks like (random, shuffled, repeated or replaced tokens, runs), and on texts.

A window diverges when its logits are lost: a user who types such a text gets nothing of use, and the server cannot
know. One that leaves a domain was lucky. A faint window has a position whose choice of a word is below half of a clean
one: what is fed back there is a weak copy of it. Shuffled and replaced windows and runs need a text (the default model
has its own); the excess is in widths of the domain."""
EXAMPLES = """  heat stress default
  heat stress out/heat/circuit code.txt letters.txt tokens.npy --windows 200
  heat stress default --kinds random,repeated --positions 32 --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own options."""
    parser.add_argument("circuit", help="circuit directory, 'default' or 'default-calibrated'")
    parser.add_argument("texts", nargs="*", type=Path, metavar="TEXT", help="text files, or .npy of token ids")
    parser.add_argument("--windows", type=int, default=30, help="of each kind, and of each text at most (default 30)")
    parser.add_argument("--positions", type=int, help="tokens of a window (default: the circuit's context)")
    parser.add_argument("--kinds", default=",".join(KINDS), help=f"those to run (default {','.join(KINDS)})")
    parser.add_argument("--seed", type=int, default=0, help="of the odd windows (default 0)")
    parser.add_argument("--batch", type=int, default=8, help="windows at a time (default 8)")


def run(args: argparse.Namespace, console: Console) -> int:
    """Load, run, print; the exit code says whether the work was done, not what it found."""
    circuit = Circuit.load(circuit_folder(args.circuit))
    positions = args.positions or circuit.shape.context
    if not 2 <= positions <= circuit.shape.context:
        raise ConfigError(f"--positions lies between 2 and the circuit's context of {circuit.shape.context}")
    if args.windows < 1 or args.batch < 1:
        raise ConfigError(f"--windows and --batch are at least 1, got {args.windows} and {args.batch}")
    texts = {path.name: text_rows(str(path), _tokens(path, circuit), positions, args.windows) for path in args.texts}
    own = next(iter(texts.values()), None)
    if own is None and args.circuit.startswith("default"):
        own = text_rows("the stories", _encode("\n".join(sampled_stories()[:200]), circuit), positions, args.windows)
        texts = {"stories": own}
    rows = stress_rows(
        own, circuit.shape.vocabulary, positions, args.windows, seed=args.seed, kinds=args.kinds.split(",")
    )
    found = stress_circuit(circuit, {**rows, **texts}, batch=args.batch, reporter=console.reporter)
    console.print(f"circuit {circuit.name}: windows of {positions} tokens, no guards, float64")
    console.table(STRESS_HEADERS, [s.row() for s in found])
    if own is None:
        console.print("no text was given: nothing was shuffled, no tokens were replaced")
    if lost := sum(s.diverged for s in found):
        console.warn(
            f"{lost} windows of {sum(s.windows for s in found)} diverge: on such input the circuit gives nothing of "
            "use. Train it with odd windows (heat train --odd 0.04) and with text like yours (--also TEXT)"
        )
    console.json({"circuit": circuit.name, "digest": circuit.digest, "stress": [s.as_json() for s in found]})
    return 0


def _tokens(path: Path, circuit: Circuit) -> Any:
    if path.suffix == ".npy":
        try:
            found = np.load(path, allow_pickle=False)
        except (OSError, ValueError, EOFError) as err:
            raise DataError(f"{path}: not an array of token ids ({err})") from err
        if found.ndim != 1 or not np.issubdtype(found.dtype, np.integer):
            raise DataError(f"{path}: expected one row of integer token ids, found {found.dtype} of {found.shape}")
        for end in (found.min(initial=0), found.max(initial=0)):
            if not 0 <= end < circuit.shape.vocabulary:
                raise DataError(
                    f"{path}: token {end} is none of the {circuit.shape.vocabulary} of {circuit.name}; encode the text "
                    "with the circuit's own tokenizer"
                )
        return found
    try:
        return _encode(path.read_text(encoding="utf-8"), circuit)
    except (OSError, UnicodeDecodeError) as err:
        raise DataError(f"{path}: cannot be read as text ({err}); give a text file, or .npy of token ids") from err


def _encode(text: str, circuit: Circuit) -> Any:
    from tokenizers import Tokenizer

    if "tokenizer.json" not in circuit.tokenizer:
        raise DataError("this circuit has no tokenizer; give texts as .npy of token ids")
    tokenizer = Tokenizer.from_str(circuit.tokenizer["tokenizer.json"].decode())
    return np.asarray(tokenizer.encode(text, add_special_tokens=False).ids, dtype=np.int64)
