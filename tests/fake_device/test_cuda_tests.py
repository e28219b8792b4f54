"""The tests marked `cuda` pass on the fake device, but for those that need what it does not have."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

from fake_device.running import TESTS, FakeDevice

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(3000)]
FILES = (
    "ops/test_attention_cuda.py", "ops/test_elementwise_cuda.py", "ops/test_experts_cuda.py",
    "ops/test_fp8.py", "ops/test_gemm_cuda.py",
    "ops/test_linear_cross_entropy_cuda.py", "ops/test_nf4.py", "ops/test_optimizer_ops_cuda.py",
    "ops/test_rms_norm_cuda.py", "ops/test_scaled_gemm.py", "train/test_engine_cuda.py",
    "weight_sync/test_nccl.py",
)  # fmt: skip
DEVICES = {"weight_sync/test_nccl.py": 2}  # of the others a run's batch would grow with them
ELSEWHERE = {"ops/test_cudnn_attention_cuda.py"}  # large shapes; small ones are in test_cudnn.py


@pytest.mark.parametrize("file", FILES)
def test_file(file: str, fake_device: Callable[..., FakeDevice]) -> None:
    device = fake_device(devices=DEVICES.get(file, 1))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-n", "0", "-q", "-m", "cuda", file],
        cwd=TESTS, env={**device.environment(), "FASTSFT_REQUIRE_CUDA": "1"}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:]
    assert not device.lines("wrong_calls")


def test_no_file_is_forgotten() -> None:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "--collect-only",
        "-qq",
        "-m",
        "cuda",
    ]
    done = subprocess.run([*command, "-n", "0"], cwd=TESTS, capture_output=True, text=True)
    found = {
        line.rpartition(":")[0].removeprefix("tests/") for line in done.stdout.splitlines() if ": " in line
    }
    assert found == {*FILES, *ELSEWHERE}
