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
