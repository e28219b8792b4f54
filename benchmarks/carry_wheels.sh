#!/usr/bin/env bash
# Collects what build_in_place.sh needs beside torch, cmake and ninja, for a machine without network.
#
# usage: benchmarks/carry_wheels.sh [folder, default .wheels]
# PYTHON: interpreter of this machine
# With CMAKE=1 the wheel of cmake comes too, 28 MiB. The folder is ignored by git; it travels with the tree. Of cuDNN's
# frontend only the headers are used: build_in_place.sh unpacks its wheel, whatever interpreter and processor it is for.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

folder="${1:-.wheels}"
mkdir -p "$folder"
rm -f "$folder"/*.whl  # two versions of one package would stop the installation
"${PYTHON:-python3}" -m pip download --quiet --no-deps --only-binary=:all: --python-version 3.12 --platform any \
  --dest "$folder" 'pybind11>=3.0' 'nlohmann_json==3.12.*'
"${PYTHON:-python3}" -m pip download --quiet --no-deps --only-binary=:all: --python-version 3.12 \
  --platform manylinux_2_28_x86_64 --dest "$folder" 'nvidia-cudnn-frontend==1.18.*'
if [[ "${CMAKE:-0}" == 1 ]]; then
  "${PYTHON:-python3}" -m pip download --quiet --no-deps --only-binary=:all: --python-version 3.12 \
    --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 --dest "$folder" 'cmake>=4.0'
fi
ls -l "$folder"
# Of the tree and both folders, as they travel together.
bytes=$( (git ls-files -z; find "$folder" .peers -name '*.whl' -print0 2>/dev/null || true) | du -cb --files0-from=- |
  awk 'END {print $1}')
echo "the tree with $folder and .peers: $((bytes >> 20)) MiB"
if ((bytes > 64 << 20)); then
  echo "that is more than the 64 MiB that may travel; leave .peers or the wheel of cmake out" >&2
  exit 1
fi
