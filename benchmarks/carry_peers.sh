#!/usr/bin/env bash
# Collects the pure-Python peers as wheels, for a machine without network that has torch already.
#
# usage: benchmarks/carry_peers.sh [folder, default .peers]        (PYTHON: interpreter of this machine)
# There: python3 -m pip install --no-index --no-deps --target /tmp/peers FOLDER/*.whl; PYTHONPATH=/tmp/peers
set -euo pipefail

folder="${1:-.peers}"
python="${PYTHON:-python3}"
limit=$((64 << 20))
# Pinned where the baseline is defined by a version; compiled needs (tokenizers, sentencepiece, safetensors, regex)
# are left out, because they depend on the other machine's Python.
peers=(transformers==4.57.6 fschat==0.2.36 accelerate trl==0.24.0 liger-kernel==0.6.2 peft==0.17.1 datasets==4.1.1
  huggingface_hub==0.36.0 shortuuid markdown2 pybind11 nlohmann_json)

mkdir -p "$folder"
for peer in "${peers[@]}"; do
  "$python" -m pip download --quiet --no-deps --only-binary=:all: --dest "$folder" "$peer" ||
    { echo "no wheel of $peer" >&2; exit 1; }
done
size=$(du -sb "$folder" | cut -f1)
echo "$(find "$folder" -name '*.whl' | wc -l) wheels, $((size >> 20)) MiB in $folder"
if ((size > limit)); then
  echo "$folder holds $size bytes, more than the $limit that may travel; leave peers out" >&2
  exit 1
fi
echo "there: python3 -m pip install --no-index --no-deps --target /tmp/peers $folder/*.whl && export PYTHONPATH=/tmp/peers"
