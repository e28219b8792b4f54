#!/usr/bin/env bash
# Collects the peers as wheels, for a machine without network that has torch and Python 3.12 on x86-64.
#
# usage: benchmarks/carry_peers.sh [folder, default .peers]        (PYTHON: interpreter of this machine)
# There: python3 -m pip install --no-index --no-deps --target /tmp/peers FOLDER/*.whl; PYTHONPATH=/tmp/peers
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

folder="${1:-.peers}"
python="${PYTHON:-python3}"
limit=$((64 << 20))
# Pinned where the baseline is defined by a version; tokenizers because transformers 4.57
# refuses a newer one. Other compiled needs (sentencepiece, safetensors, regex, pyarrow) must be there.
peers=(transformers==4.57.6 fschat==0.2.36 accelerate trl==0.24.0 liger-kernel==0.6.2 peft==0.17.1 datasets==4.1.1
  huggingface_hub==0.36.0 tokenizers==0.22.2 dill==0.4.0 multiprocess==0.70.16 shortuuid markdown2)

mkdir -p "$folder"
rm -f "$folder"/*.whl
for peer in "${peers[@]}"; do
  "$python" -m pip download --quiet --no-deps --only-binary=:all: --python-version 3.12 \
    --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 --dest "$folder" "$peer" ||
    { echo "no wheel of $peer" >&2; exit 1; }
done
size=$(du -sb "$folder" | cut -f1)
echo "$(find "$folder" -name '*.whl' | wc -l) wheels, $((size >> 20)) MiB in $folder"
if ((size > limit)); then
  echo "$folder holds $size bytes, more than the $limit that may travel; leave peers out" >&2
  exit 1
fi
echo "there: python3 -m pip install --no-index --no-deps --target /tmp/peers $folder/*.whl && export PYTHONPATH=/tmp/peers"
