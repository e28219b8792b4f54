#!/usr/bin/env bash
# compute-sanitizer over the kernels of fastsft: out-of-bounds accesses, races on shared memory.
#
# usage: benchmarks/sanitize.sh [pytest arguments]      (PYTHON as in gpu.sh; fastsft must be built)
# The allocator of torch is switched off, so that every tensor has bounds of its own. Kernels of libraries are not looked at.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python="${PYTHON:-python3}"
export PYTHONPATH="python${PYTHONPATH:+:$PYTHONPATH}" FASTSFT_REQUIRE_CUDA=1 PYTORCH_NO_CUDA_MEMORY_CACHING=1
ops=(rms_norm elementwise attention gemm linear_cross_entropy optimizer_ops)
tests=("$@")
((${#tests[@]})) || for op in "${ops[@]}"; do tests+=("tests/ops/test_${op}_cuda.py"); done
small='not 16384 and not 40000 and not 11008 and not 32000 and not 517 and not 3000000 and not 5000007 and not 4096 and not to_the_31'
for tool in memcheck racecheck; do
  check=(compute-sanitizer --tool "$tool" --error-exitcode 9 --kernel-name kns=fastsft "$python")
  echo "== $tool: ops"
  "${check[@]}" -m pytest -m cuda "${tests[@]}" -k "$small" -x -q -p no:cacheprovider
  for bf16 in True False; do
    echo "== $tool: one step, bf16 $bf16"
    "${check[@]}" benchmarks/bench_step.py --model tiny --device cuda:0 --workload W2 --rows 6 --longest 64 --bf16 "$bf16" \
      --micro_batch_tokens 128 --warm_up 0 --steps 1 --repeats 1 --out /dev/null
  done
done
