#!/usr/bin/env bash
# Builds fastsft on a machine with a GPU, then tests and measures it, the most important steps first.
#
# usage: benchmarks/gpu.sh [seconds, default 560] [step...]
# Steps: build device numbers step gemm attention ops_suite recorded ops step_real step_13b suite peers sanitizer; without
# names, all in this order. build: only if python/fastsft has no extension for PYTHON; a machine with the same torch and
# Python can build it before.
# numbers: attention's kernels against each other with dirty scratch, and an engine's losses and gradients against the
# CPU's. recorded: a run of FastChat's that tests/golden has, with its losses. The first seven fit into 560 seconds on an
# H100 or H200; `gpu.sh 200 recorded ops step_real` is made for a second call. peers_7b, the peers' 7B row, takes a run of its own.
# With less than 130 GiB of device memory (H100 80 GB) 7B has short micro-batches, and 13B is left out.
# A step that does not fit into the seconds, or is cut off by them, is left out; the last line says how to go on. PYTHON is the interpreter
# that has torch (default: python3). Nothing is downloaded. Records go to benchmarks/results/. Where OUT names a
# folder, it gets gpu.log, and after every step results.tgz: records, logs, timelines.
# SMALL=WORD: a rehearsal, by tests/fake_device. All sizes are small, and of the tests run those in files with WORD in their name.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python="${PYTHON:-python3}"
budget="${1:-560}"
shift $(($# > 0))
steps=("$@")
((${#steps[@]})) || steps=(build device numbers step gemm attention ops_suite recorded ops step_real step_13b suite peers sanitizer)
work=build/gpu
mkdir -p "$work" benchmarks/results
rm -f "$work"/*
export PYTHONPATH="python:benchmarks${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1 FASTSFT_REQUIRE_CUDA=1
export PATH="$PATH:/usr/local/cuda/bin"
touch -d "1 second ago" "$work/started"
failed=() left_out=() step=""
small_step=() smoke=() lengths="" spare=0 run_of_fastchat=test_recorded_run_of_fastchat
heads="(32, 32, 128), (32, 8, 128), (28, 4, 128), (16, 2, 128), (4, 1, 256)"
if [[ -n "${SMALL:-}" ]]; then
  small_step=(--model tiny --longest 64 --rows 6 --micro_batch_tokens 128 --repeats 1 --steps 1)
  smoke=(--smoke cuda) spare=$budget run_of_fastchat+=" and e_max_steps and not epoch"
  heads="(2, 2, 16), (2, 1, 16)" lengths="kernels._UNEVEN = kernels._FULL_ROWS = (100, 33, 1)"
fi
device_gib="$("$python" -c 'import torch; print(torch.cuda.get_device_properties(0).total_memory >> 30)' 2>/dev/null || echo 0)"

# What limits the clock during each row: power, heat, or nothing.
if command -v nvidia-smi >/dev/null; then
  nvidia-smi --query-gpu=timestamp,clocks.sm,power.draw,temperature.gpu,clocks_event_reasons.active --format=csv \
    --loop-ms=500 >"$work/clocks.csv" 2>/dev/null &
  trap "kill $! 2>/dev/null" EXIT
fi

# Prints a line, which gpu.log gets as well: it says whose output the lines below are, and what failed.
say() { echo "== $*" | tee ${OUT:+-a "$OUT/gpu.log"}; }

# Kept after every step, so that a run that is cut off loses one step.
pack() {
  [[ -n "${OUT:-}" ]] || return 0
  find benchmarks/results "$work" -type f -newer "$work/started" -print0 | tar -czf "$OUT/results.tgz" --null -T -
}

leave_out() {
  say "$1: left out, the seconds are used up"
  [[ " ${left_out[*]} " == *" $step "* ]] || left_out+=("$step")
}

# run NAME LIMIT COMMAND...: at most LIMIT seconds and what is left of the budget.
run() {
  local name="$1" limit="$2" left=$((budget - SECONDS)) log="$work/$1.log" status
  shift 2
  [[ -z "${SMALL:-}" ]] || limit=$left  # its device is slow
  if ((left < 30 || left < limit && left < 60)); then
    leave_out "$name"
    return
  fi
  say "$name (${SECONDS}s): $*"
  timeout --kill-after=10 "$((limit < left ? limit : left))" "$@" 2>&1 | tee "$log" ${OUT:+-a "$OUT/gpu.log"}
  status=${PIPESTATUS[0]}
  if ((left < limit && (status == 124 || status == 137))); then
    leave_out "$name"
  elif ((status)); then
    say "$name: failed with $status"
    failed+=("$name")
  fi
  pack
}

# One process a file: a kernel that breaks the device's context ends the tests of its file only. Files without
# tests for a GPU are not collected, they may import what this machine lacks.
pytest=("$python" -m pytest -q --tb=short --maxfail=20 -p no:cacheprovider)
cuda_tests() { grep -rlE --include='test_*.py' 'mark\.cuda|device: OpDevice' "$1" | grep -E "${SMALL:-.}" | sort; }
suite() {
  local file
  run suite_test_kernel_listing 300 "${pytest[@]}" tests/ops/test_kernel_listing.py
  for file in $(cuda_tests tests); do
    run "suite_$(basename "$file" .py)" 300 "${pytest[@]}" -m cuda "$file"
  done
}

# bench NAME ARGUMENTS...: a row of bench_step.py.
bench() {
  local name="$1"
  shift
  run "$name" 200 "$python" benchmarks/bench_step.py --out "benchmarks/results/$name.json" --device cuda:0 --warm_up 1 "$@" \
    "${small_step[@]}"
}

# narrow RECOMPUTE TOKENS SETTING: 7B at 10 bytes a parameter, with one step's kernels. SETTING: options of bench_step.py
# after --attention_kernel.
narrow() {
  local name="step_7b_W1_narrow_$1_$2_${3// --/_}"
  # shellcheck disable=SC2086  # words of the setting
  bench "$name" --model vicuna-7b --workload W1 --recompute "$1" --micro_batch_tokens "$2" "${ten_bytes[@]}" --rows 16 \
    --repeats 2 --steps 2 --top_kernels 25 --attention_kernel $3
}

# compare NAME LIMIT ARGUMENTS...: bench_peers.py, with the wheels of carry_peers.sh. They are unpacked once a run,
# and not where results are collected.
compare() {
  local name="$1" limit="$2" wheels="${PEERS:-.peers}" site=build/peers
  shift 2
  if ! compgen -G "$wheels/*.whl" >/dev/null; then
    say "$name: left out, no wheels in $wheels (benchmarks/carry_peers.sh)"
    return
  fi
  if [[ ! $site -nt "$work/started" ]]; then
    rm -rf "$site"
    run peers_unpacked 120 "$python" -m pip install --quiet --no-index --no-deps --target "$site" "$wheels"/*.whl
  fi
  PYTHONPATH="$PYTHONPATH:$site" run "$name" "$limit" "$python" benchmarks/bench_peers.py --device cuda:0 "$@"
}

# A 7B model takes 63 GiB at 10 bytes a parameter; activations get the rest: with nothing computed again, one row of
# 2,047 tokens on an H100 80 GB, eight on an H200. With fp32 gradients and split masters it takes 16 bytes, 100 GiB.
ten_bytes=(--grad_dtype bfloat16 --optim_dtype bfloat16 --master_dtype split)
large=(--micro_batch_tokens 6144 --recompute none --master_dtype split) suffix="" most_tokens=16384
if ((0 < device_gib && device_gib < 130)); then
  large=(--micro_batch_tokens 4096 --recompute gate_up "${ten_bytes[@]}") suffix=_10_bytes most_tokens=2048
fi

# too_large STEP: whether it needs the memory of an H200, which is not there.
too_large() {
  [[ -n $suffix ]] && say "$1: left out, it takes 130 GiB and the device has $device_gib"
}

one_step() {
  case "$1" in
    build)
      if "$python" -c 'import torch, fastsft._C as c; assert c.with_cuda' 2>/dev/null; then
        say "build: left out, python/fastsft has an extension for this interpreter"
      else
        run build 480 bash benchmarks/build_in_place.sh
      fi
      ;;
    device) run device 60 "$python" -c 'import torch, fastsft._C as c; print(torch.__version__, torch.cuda.get_device_name(), c.with_cuda); assert c.with_cuda' ;;
    numbers)
      run attention_kernels 90 "$python" -c 'import torch
from fastsft import _C  # registers the ops
from fastsft.model import attention_kernel as kernels
'"$lengths"'
print("cuDNN", torch.backends.cudnn.version(), "(equal times: flash2 ran twice)")
for heads in ('"$heads"'): print(heads, kernels.faster_kernel(kernels.Heads(*heads), torch.bfloat16, torch.device("cuda:0")))'
      run engine_numbers 150 "$python" -m pytest -q --tb=short -p no:cacheprovider -m cuda tests/train/test_engine_cuda.py \
        -k "fp32_curve or gradients or wait"
      ;;
    suite) suite ;;
    step)
      for setting in flash2 cudnn "cudnn --tune_gemm"; do narrow none "$most_tokens" "$setting"; done
      narrow selective "$((2 * most_tokens))" cudnn
      bench step_1b_W1 --model llama-3.2-1b --workload W1 --repeats 2 --steps 3
      too_large step_7b_W1 ||
        bench step_7b_W1 --model vicuna-7b --workload W1 "${large[@]}" --repeats 2 --steps 3 --profile "$work/step_7b_W1_trace.json"
      ;;
    step_13b)  # 10 bytes a parameter: split masters, moments and gradients in bfloat16
      too_large step_13b ||
        bench step_13b_W1_10_bytes --model vicuna-13b --workload W1 --micro_batch_tokens 4096 --recompute gate_up \
          "${ten_bytes[@]}" --rows 16 --repeats 2 --steps 2
      ;;
    step_real)
      bench "step_7b_W2$suffix" --model vicuna-7b --workload W2 "${large[@]}" --rows 128 --repeats 2 --steps 3
      too_large step_7b_W1_bfloat16_gradients ||
        bench step_7b_W1_bfloat16_gradients --model vicuna-7b --workload W1 --micro_batch_tokens 8192 \
          --recompute none --grad_dtype bfloat16 --master_dtype split --repeats 2 --steps 3
      ;;
    peers)  # 24 conversations a step, each peer in its best setting that fits
      compare peers 500 --model llama-3.2-1b --workload W2 --peers fastchat liger trl --rows 24 --micro_batch 4 \
        --steps 6 --pairs 2
      ;;
    peers_7b)  # fp32 state of a 7B model and its activations: fastchat only, with its checkpointing
      too_large peers_7b || compare peers_7b 540 --model vicuna-7b --workload W2 --peers fastchat --rows 32 --micro_batch 2 --steps 4 \
        --warm_up 1 --pairs 1 --recompute gate_up
      ;;
    gemm) run gemm 90 "$python" benchmarks/bench_gemm.py --seconds $((60 + spare)) "${smoke[@]}" ;;
    attention) run attention 100 "$python" benchmarks/bench_attention.py --seconds $((80 + spare)) "${smoke[@]}" ;;
    ops_suite)
      mapfile -t files < <(cuda_tests tests/ops)
      run ops_suite 120 "${pytest[@]}" -m cuda "${files[@]}"
      ;;
    recorded) run recorded 60 "${pytest[@]}" -m cuda tests/train/test_engine_cuda.py -k "$run_of_fastchat" --maxfail=1 ;;
    ops) run ops 120 "$python" benchmarks/bench_ops.py --seconds $((90 + spare)) "${smoke[@]}" ;;
    sanitizer)
      if command -v compute-sanitizer >/dev/null; then
        run sanitizer 540 bash benchmarks/sanitize.sh
      else
        say "sanitizer: left out, compute-sanitizer is not installed"
      fi
      ;;
    *)
      echo "gpu.sh: no step \"$1\"" >&2
      failed+=("$1")
      ;;
  esac
}

for step in "${steps[@]}"; do
  if ((budget - SECONDS < 30)); then
    left_out+=("$step")
    continue
  fi
  one_step "$step"
  # Without an extension or a device nothing else can run.
  [[ $step == build || $step == device ]] && ((${#failed[@]})) && break
done
((${#failed[@]})) && say "failed: ${failed[*]}"
((${#left_out[@]})) && say "to go on: benchmarks/gpu.sh $budget build ${left_out[*]}"
((${#failed[@]} + ${#left_out[@]} == 0))
