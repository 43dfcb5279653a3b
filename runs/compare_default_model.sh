#!/usr/bin/env bash
# The whole table on the default model: four calibrations and five presets, both solvers, three seeds, sigma 1.7e-4.
#   runs/compare_default_model.sh [further options of heat compare, e.g. --share 0.1 --seeds 0]
# Thirty runs of up to ten minutes on two cores; finished rows are kept, so it can be stopped and started again.
# With --params insecure-native-12 the noise enters at each plan's own bootstraps, in every slot.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${OUT:-runs/out/compare}
python=$(scripts/setup main)/bin/python
PYTHONPATH=src "$python" -m heatfhe.cli compare default -o "$out" --solvers plain,relaxed --seeds 0,1,2 "$@"
echo "the table as JSON: $out/compare.json"
