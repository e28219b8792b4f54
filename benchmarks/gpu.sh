#!/usr/bin/env bash
# All GPU work in order: the suite first, then sanitizer and benchmarks, within a budget of seconds.
#
# usage: benchmarks/gpu.sh [seconds, default 3000]
# PYTHON is the interpreter that has torch (default: python3); fastsft must be built (docs/gpu.md). Results go to
# benchmarks/results/, logs to $OUT or benchmarks/results/. Nothing is downloaded.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python="${PYTHON:-python3}"
budget="${1:-3000}"
logs="${OUT:-benchmarks/results}"
export PYTHONPATH="python:benchmarks${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1 FASTSFT_REQUIRE_CUDA=1
mkdir -p "$logs"
failed=0

# step NAME LIMIT COMMAND...: at most LIMIT seconds and what is left of the budget.
step() {
  local name="$1" limit="$2" left=$((budget - SECONDS)) status
  shift 2
  if ((left < 20)); then
    echo "== $name: left out, the budget of ${budget}s is spent"
    failed=1
    return
  fi
  echo "== $name (${SECONDS}s)"
  timeout "$((limit < left ? limit : left))" "$@" 2>&1 | tee "$logs/$name.log"
  status=${PIPESTATUS[0]}
  ((status == 0)) || { echo "== $name: failed with $status"; failed=1; }
}

step device 60 "$python" -c 'import torch, fastsft._C as c; print(torch.__version__, torch.cuda.get_device_name(), c.with_cuda); assert c.with_cuda'
step suite 540 "$python" -m pytest -m cuda tests -p no:cacheprovider
step gemm 540 "$python" benchmarks/bench_gemm.py --seconds 420
step attention 540 "$python" benchmarks/bench_attention.py --seconds 420
step ops 300 "$python" benchmarks/bench_ops.py --seconds 240
if command -v compute-sanitizer >/dev/null; then
  step sanitizer 540 benchmarks/sanitize.sh
else
  echo "== sanitizer: left out, compute-sanitizer is not installed"
fi
exit "$failed"
