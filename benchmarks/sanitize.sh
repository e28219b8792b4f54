#!/usr/bin/env bash
# compute-sanitizer over the kernels of fastsft: out-of-bounds accesses, races on shared memory, uninitialised reads.
#
# usage: benchmarks/sanitize.sh [pytest arguments]      (PYTHON as in gpu.sh; fastsft must be built)
# The allocator of torch is switched off, so that every tensor has bounds of its own. Libraries are not looked at.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python="${PYTHON:-python3}"
export PYTHONPATH="python${PYTHONPATH:+:$PYTHONPATH}" FASTSFT_REQUIRE_CUDA=1 PYTORCH_NO_CUDA_MEMORY_CACHING=1
tests=("${@:-tests/ops/test_rms_norm_cuda.py tests/ops/test_elementwise_cuda.py tests/ops/test_attention_cuda.py}")
small='not 16384 and not 40000 and not 11008 and not 32000 and not 517 and not 3000000'
for tool in memcheck racecheck; do
  echo "== $tool"
  # shellcheck disable=SC2086
  compute-sanitizer --tool "$tool" --error-exitcode 9 --kernel-name-exclude kns=cub \
    "$python" -m pytest -m cuda ${tests[*]} -k "$small" -x -q -p no:cacheprovider
done
