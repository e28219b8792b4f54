"""Runs the sweep in a process of its own, with a build of the kernels that this process could not load.

usage: python -m cuda_on_cpu.run_sweep [order...]

Prints each call that fails, then how many ran; exits 1 when one failed. CUDA_ON_CPU_OPS names the only ops
that run; with them it stops at the first failure.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

TESTS = Path(__file__).parents[1]


def main(arguments: list[str]) -> int:
    import torch

    from cuda_on_cpu.emulation import Order, emulation
    from cuda_on_cpu.sweep import calls
    from device_ops import kernels_on_cpu

    torch.manual_seed(0)
    torch.set_num_threads(1)
    device = kernels_on_cpu([Order[name] for name in arguments] or list(Order))
    only = os.environ.get("CUDA_ON_CPU_OPS", "").split()
    failed = count = 0
    for call in calls():
        if only and call.op not in only:
            continue
        count += 1
        try:
            device.agree(call.op, *call.args, **call.options)
        except (AssertionError, RuntimeError) as error:
            failed += 1
            print(f"FAILED {call.op} of {call.shapes}: {error}", flush=True)
            if only:
                break
    print(f"{count} calls, {failed} failed, {emulation().traced_accesses} accesses traced")
    return 1 if failed else 0


def started(kind: str, orders: tuple[str, ...], **changes: str) -> subprocess.CompletedProcess[str]:
    """The process, to its end. kind: of the build; with "sanitized" the sanitizers' libraries come first."""
    paths = [TESTS, TESTS / "support", os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), "CUDA_ON_CPU_BUILD": kind, **changes}
    command = [sys.executable, "-m", "cuda_on_cpu.run_sweep", *orders]
    return subprocess.run(command, env={**env, **sanitizers(kind)}, capture_output=True, text=True)


def sanitizers(kind: str) -> Mapping[str, str]:
    if kind != "sanitized":
        return {}
    asks = [["g++", f"-print-file-name={name}"] for name in ("libasan.so", "libubsan.so")]
    libraries = [
        subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip() for ask in asks
    ]
    # Python's own memory is never given back; an error ends the process with what was wrong.
    options = {"ASAN_OPTIONS": "detect_leaks=0:halt_on_error=1", "UBSAN_OPTIONS": "print_stacktrace=1"}
    return {"LD_PRELOAD": " ".join(libraries), **options}


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
