# SPDX-License-Identifier: Apache-2.0
"""A server under kill -9, full and closed disks, wrong clocks and rivals: same tokens, nothing lost, nothing left over?

    python runs/chaos.py [--rounds 100] [--seed 0]        (make chaos)

Prints one line per round, then a table; ends with 1 if any round found a fault. A round takes five to fifteen seconds.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.server.chaos import run_chaos, table
from tests.server.serving import save_model


def main() -> int:
    """Rounds, then the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="heatfhe-chaos-") as home:
        source = save_model(Path(home) / "model")
        found = run_chaos(source, Path(home), args.rounds, seed=args.seed, said=lambda line: print(line, flush=True))
    print(table(found))
    return int(any(r.faults for rounds in found.values() for r in rounds))


if __name__ == "__main__":
    sys.exit(main())
