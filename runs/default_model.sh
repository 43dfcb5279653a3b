#!/usr/bin/env bash
# The embedded default model from nothing: parent, text sampled from it, HEAT run, both circuits, into the package.
#   runs/default_model.sh DATA [further options of runs/default_model.py, e.g. --minutes 400 --device cpu]
# DATA holds stories.train.txt.xz and stories.heldout.txt.xz. A few minutes on a GPU and ten on two cores; on a CPU alone
# give the parent a night. Stopped in the HEAT run, the last line of this script's output says how to go on.
set -euo pipefail
cd "$(dirname "$0")/.."
data=${1:?usage: runs/default_model.sh DATA [options of runs/default_model.py]}
shift
out=${OUT:-runs/out/default}
assets=src/heatfhe/assets/default
python=$(scripts/setup main)/bin/python
export PYTHONPATH=src

if [ ! -e "$out/parent/training.json" ]; then
  "$python" runs/default_model.py --data "$data" --out "$out/parent" "$@"
fi
mkdir -p "$assets/parent"
cp "$out"/parent/{config.json,model.safetensors,tokenizer.json,training.json} "$assets/parent/"
cp "$out/parent/sampled.txt.xz" "$assets/"
"$python" -m heatfhe.cli train default -o "$out/heat" || { echo "start the same command again to go on" >&2; exit 1; }
"$python" runs/embed_default.py --heat "$out/heat/circuit"
du -ch "$assets"/parent/model.safetensors "$assets"/*/weights.safetensors "$assets/sampled.txt.xz"
