#!/usr/bin/env bash
# The whole table on the default model: eight calibrations per solver and ten presets, three seeds, noise of
# 1.7e-4 at every bootstrap of each circuit's own plan.
#   [PROCESSES=16] [OUT=DIR] runs/compare_default_model.sh [further options of heat compare, e.g. --share 0.1 --seeds 0]
# With four calibrations and seven presets it took two hours of one core; this is more, and was not timed. Rows that are
# done are kept, so it can be stopped and started again.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${OUT:-runs/out/compare}
python=${PYTHON:-$(scripts/setup main)/bin/python}
presets=heat,heat:relaxed,plan-aware,noisy,squeezed,depth-only,fixed-counts,transplant,control,control-distilled
CUDA_VISIBLE_DEVICES='' PYTHONPATH=src${PYTHONPATH:+:$PYTHONPATH} "$python" -m heatfhe.cli compare default -o "$out" \
    --presets "$presets" --seeds 0,1,2 --params insecure-openfhe-12 --processes "${PROCESSES:-2}" "$@"
echo "every row: $out/compare.json    the mean over seeds: $out/compare.md"
