#!/usr/bin/env bash
# The whole table on the default model: eight calibrations per solver, ten presets and, where there is a GPU, both ATLAS
# searches with the paper's budget; three seeds, noise of 1.7e-4 at every bootstrap of each circuit's own plan.
#   [PROCESSES=13] [FOLDER=DIR] [DEVICE=cuda|cpu|none] [CARRIED=DIR] runs/compare_default_model.sh [options of heat compare]
# Searches run on the GPU in three processes of their own, every other row on the CPU in one of PROCESSES, one thread
# each. DEVICE=cpu searches there (most of an hour of one core each), none leaves searches out; the default is cuda where
# torch sees a GPU, else none. CARRIED is a folder with pymoo, as runs/search_gpt2_wiki.py describes it.
# Rows that are done are kept, so it can be stopped and started again. It ends with the packed results in FOLDER/packed;
# runs/pack_rows.py packs what is there at any time. For a trial: --share 0.01 --seeds 0.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${FOLDER:-runs/out/compare}
python=${PYTHON:-$(scripts/setup main)/bin/python}
presets=heat,heat:relaxed,plan-aware,noisy,squeezed,depth-only,fixed-counts,transplant,control,control-distilled
sees_gpu='import torch; print("cuda" if torch.cuda.is_available() else "none")'
device=${DEVICE:-$("$python" -c "$sees_gpu")}
if [ "$device" != cuda ]; then export CUDA_VISIBLE_DEVICES=''; fi
if [ "$device" != none ]; then presets=$presets,atlas,atlas-noisy; fi
export PYTHONPATH=$PWD/src${PYTHONPATH:+:$PYTHONPATH}${CARRIED:+:$(realpath "${CARRIED:-.}")}
export TORCHINDUCTOR_COMPILE_THREADS=${TORCHINDUCTOR_COMPILE_THREADS:-2} TOKENIZERS_PARALLELISM=false PYTHONUNBUFFERED=1
status=0
"$python" -m heatfhe.cli compare default -o "$folder" --presets "$presets" --seeds 0,1,2 --params insecure-openfhe-12 \
    --processes "${PROCESSES:-2}" --device "${device/none/cpu}" "$@" || status=$?
"$python" runs/pack_rows.py "$folder" "$folder/packed"
exit "$status"
