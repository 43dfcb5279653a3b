# SPDX-License-Identifier: Apache-2.0
"""Plans of one GPT-2-small token at several calibrations, without their weights, on which a plan does not depend.

    python runs/plan_calibrations.py atlas=OUT/seed-0/chosen.calibration.json heat=OUT/circuit/calibration.json \\
        [--params native-16-r40-lean] [--costs TABLE] [--precision 10] [--context 128]

One line each: iterations by family, then refreshes and predicted seconds of a generated token and of one up to its
logits.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))
sys.path.insert(0, str(Path(__file__).parent))

from gpt2_small_fixture import gpt2_small

from heatfhe.planning import cost_table, default_cost, plan, preset
from heatfhe.records import Calibration


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("calibrations", nargs="+", metavar="NAME=FILE")
    parser.add_argument("--params", default="native-16-r40-lean")
    parser.add_argument("--costs", help="cost table (default: the set's own, of a GPU)")
    parser.add_argument("--precision", type=float, help="bits a refresh should keep, as in heat plan (default: none)")
    parser.add_argument("--context", type=int, default=128)
    args = parser.parse_args()
    if wrong := [given for given in args.calibrations if "=" not in given]:
        parser.error(f"calibrations are given as NAME=FILE, got {wrong[0]!r}")
    params = preset(args.params)
    costs = cost_table(args.costs or default_cost(params, "cuda"))
    fixture = gpt2_small(context=args.context)
    for given in args.calibrations:
        name, _, path = given.partition("=")
        found = Calibration.load(path)
        made = plan(
            replace(fixture, calibration=found), params, programs=("generate", "logits"), context=args.context,
            cost=costs, precision=args.precision,
        )  # fmt: skip
        line = {"circuit": name, "iterations": sum(found.iterations().values()), "by_family": found.iterations()}
        for program in ("generate", "logits"):
            steps = made.program(program)
            line[program] = [len(list(steps.bootstraps())), round(steps.predicted_seconds, 4)]
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
