# SPDX-License-Identifier: Apache-2.0
"""How many rows of logits an argmax loses that was fitted as calibrations fit it, on a circuit of the default model.

    python runs/argmax_rows.py OUT/heat-plain-seed-0/circuit

The schedule is fitted anew on rows of 128 windows of text and 512 odd ones, sampled and kept at the ends as
``ranges.observe`` does; judged are 300 odd windows of each kind (seed 7) and other stories, 232,000 rows in all. A row
is lost where its leader ends below a half, or as no number. A minute on one core.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

from heatfhe.approx import shorten
from heatfhe.circuit import Circuit
from heatfhe.circuit.forward import one_hot
from heatfhe.evaluation import stress_rows
from heatfhe.models import encoder
from heatfhe.odd import KINDS, odd_rows
from heatfhe.ranges import MAX_TEMPERATURE, Observation, fit_argmax, sampled_rows
from heatfhe.ranges.observe import _Extremes, _keep_rows
from heatfhe.training import cut, read_documents

TEXT = Path(__file__).parent.parent / "src" / "heatfhe" / "assets" / "default" / "sampled.txt.xz"
JUDGED, FITTED = slice(0, 200), slice(300, 1100)  # stories
PART = 16  # windows at a time


def windows(circuit: Path, stories: list[str], length: int) -> NDArray[np.int64]:
    """Stories behind one another, in rows of one token more."""
    encode, end = encoder(circuit / "tokenizer")
    ids = [token for story in stories for token in (end, *encode(story))]
    return cut(np.array(ids, dtype=np.int64), length).rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("circuit", type=Path)
    args = parser.parse_args()
    circuit = Circuit.load(args.circuit)
    length, words = circuit.room, circuit.shape.vocabulary
    stories = list(read_documents(TEXT))
    text, other = (windows(args.circuit, stories[part], length) for part in (FITTED, JUDGED))
    fitted = np.concatenate([text[:128], odd_rows(KINDS, 512, text, words, 0)])[:, :length]
    seen, kept, ends, rng = Observation(), [], _Extremes(), np.random.default_rng(0)
    for start in range(0, len(fitted), PART):
        logits = torch.from_numpy(circuit.run(fitted[start : start + PART]))
        _keep_rows(seen, kept, logits)
        ends.look(logits)
    short = [shorten(sampled_rows(row, MAX_TEMPERATURE, rng)) for row in [*kept, *ends.rows]]
    made = fit_argmax(
        np.concatenate([rows for rows, _ in short]), weights=short[0][1], temperature=MAX_TEMPERATURE, settle=6
    )
    print(json.dumps({"fitted on": len(short), "levels": made.schedule.levels}), flush=True)
    again = replace(circuit, calibration=replace(circuit.calibration, argmax=made))
    for kind, part in {**stress_rows(other[:, :length], words, length, 300, seed=7), "stories": other}.items():
        lost = 0
        for start in range(0, len(part), PART):
            with np.errstate(all="ignore"):
                leaders = one_hot(again, circuit.run(part[start : start + PART, :length])).max(axis=-1)
            lost += int((~(np.isfinite(leaders) & (leaders >= 0.5))).sum())
        print(json.dumps({"kind": kind, "rows": len(part) * length, "lost": lost}), flush=True)


if __name__ == "__main__":
    main()
