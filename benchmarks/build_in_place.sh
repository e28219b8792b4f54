#!/usr/bin/env bash
# Builds fastsft with its CUDA kernels into python/fastsft, with the torch, nvcc, cmake and ninja of this machine.
#
# usage: benchmarks/build_in_place.sh      (PYTHON: the interpreter that has torch, default python3)
# Needs no network: pybind11, nlohmann_json and cuDNN's frontend come from the wheels in .wheels, where
# carry_wheels.sh put them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python="${PYTHON:-python3}"
site="$PWD/build/site"
if compgen -G '.wheels/*.whl' >/dev/null; then
  mapfile -t installed < <(find .wheels -name '*.whl' ! -name 'nvidia_cudnn_frontend*')
  mapfile -t unpacked < <(find .wheels -name 'nvidia_cudnn_frontend*.whl')
  "$python" -m pip install --quiet --no-index --no-deps --no-compile --no-cache-dir --disable-pip-version-check \
    --upgrade --target "$site" "${installed[@]}"
  for wheel in "${unpacked[@]}"; do "$python" -m zipfile -e "$wheel" "$site"; done  # headers, for any interpreter
  export PYTHONPATH="$site${PYTHONPATH:+:$PYTHONPATH}"
fi
for package in torch pybind11 nlohmann_json nvidia-cudnn-frontend; do
  "$python" -c "import importlib.metadata as m; m.version('$package')" 2>/dev/null ||
    { echo "$python has no $package; carry its wheel in .wheels (benchmarks/carry_wheels.sh)" >&2; exit 1; }
done
executable="$("$python" -c 'import sys; print(sys.executable)')"
# First what was installed with the interpreter: a system's cmake may be too old.
export PATH="$site/bin:$(dirname "$executable"):$PATH:/usr/local/cuda/bin"
if [[ "$(cmake --version | grep -oE '[0-9]+' | head -1)" -lt 4 ]]; then
  echo "$(command -v cmake) is older than 4.0 and does not know nvcc 13; carry the wheel of cmake (CMAKE=1 benchmarks/carry_wheels.sh)" >&2
  exit 1
fi
# In groups of files, as pip compiles them and the tests have it.
cmake -S . -B build/in_place -G Ninja -DFASTSFT_IN_PLACE=ON -DFASTSFT_CUDA=ON -DFASTSFT_UNITY=ON \
  -DPython_EXECUTABLE="$executable" \
  -Dpybind11_DIR="$("$python" -m pybind11 --cmakedir)"
ninja -C build/in_place --quiet
