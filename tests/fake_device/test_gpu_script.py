"""benchmarks/gpu.sh comes to its end on the fake device, from the tree and a built extension alone."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

import fastsft
from fake_device.running import HERE, TESTS, FakeDevice

pytestmark = pytest.mark.chaos

STEPS = (
    "build", "device", "numbers", "step", "gemm", "attention", "ops_suite", "recorded", "ops", "step_real",
    "step_13b", "suite",
)  # fmt: skip
ALWAYS = ["step_1b_W1", "gemm_smoke", "attention_smoke", "ops_smoke"]
KERNELS = ("flash2", "cudnn", "cudnn_tune_gemm")
# Of each memory size in GiB: the records, and the rows that are left out.
RECORDS = {
    80: [
        *ALWAYS, *(f"step_7b_W1_narrow_none_2048_{kernel}" for kernel in KERNELS),
        "step_7b_W1_narrow_selective_4096_cudnn", "step_7b_W2_10_bytes",
    ],
    141: [
        *ALWAYS, *(f"step_7b_W1_narrow_none_16384_{kernel}" for kernel in KERNELS),
        "step_7b_W1_narrow_selective_32768_cudnn", "step_7b_W1", "step_7b_W2",
        "step_7b_W1_bfloat16_gradients", "step_13b_W1_10_bytes",
    ],
}  # fmt: skip
LEFT_OUT = {80: {"step_7b_W1", "step_13b", "step_7b_W1_bfloat16_gradients"}, 141: set()}
LOGS = ["device", "attention_kernels", "engine_numbers", "ops_suite", "recorded", "suite_test_rms_norm_cuda"]


def copy_tree(to: Path) -> None:
    """Copy what travels to another machine: the tree as it is checked out, and the built package."""
    root, without_caches = TESTS.parent, shutil.ignore_patterns("__pycache__", ".*_cache")
    for name in ("benchmarks", "csrc", "scripts", "tests"):
        shutil.copytree(root / name, to / name, ignore=without_caches)
    shutil.copytree(Path(fastsft.__file__).parent, to / "python" / "fastsft", ignore=without_caches)
    shutil.copy(root / "pyproject.toml", to)
    shutil.rmtree(to / "benchmarks" / "results")


@pytest.mark.parametrize("gib", RECORDS)
def test_every_step_leaves_its_record(
    gib: int, fake_device: Callable[..., FakeDevice], tmp_path: Path
) -> None:
    tree, out = tmp_path / "tree", tmp_path / "out"
    copy_tree(tree)
    out.mkdir()
    device = fake_device(settings={"MEMORY_GIB": gib, "FREE_MIB": 512})
    environment = {
        **device.environment(), "PYTHONPATH": str(HERE / "boot"), "PYTHON": sys.executable, "OUT": str(out),
        "SMALL": "rms_norm",
    }  # fmt: skip
    done = subprocess.run(
        ["bash", "benchmarks/gpu.sh", "3000", *STEPS],
        cwd=tree,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    left_out = {line.split()[1].rstrip(":") for line in done.stdout.splitlines() if ": left out" in line}
    assert left_out == {"build"} | LEFT_OUT[gib]
    with tarfile.open(out / "results.tgz") as packed:
        names = set(packed.getnames())
    assert {f"benchmarks/results/{name}.json" for name in RECORDS[gib]} == {
        name for name in names if name.endswith(".json") and "results" in name
    }
    assert {f"build/gpu/{name}.log" for name in LOGS} <= names
    for name in RECORDS[gib]:
        record = json.loads((tree / "benchmarks" / "results" / f"{name}.json").read_text())
        gpu = record.get("gpu") or record["hardware"]["gpu"]
        assert gpu.startswith("Fake CUDA device")  # it passes for no record of a GPU
    assert not device.lines("wrong_calls")
