"""benchmarks/gpu.sh comes to its end on the fake device, from the tree and a built extension alone."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fastsft
from fake_device.running import HERE, TESTS, FakeDevice

pytestmark = pytest.mark.chaos

# Device memory that is free: attention_kernels fills it with NaN; plans keep 3 GiB of it back.
FREE_MIB = 4096
KERNELS = ("flash2", "cudnn", "cudnn_tune_gemm")
# Of each memory size in GiB: the records, and what is left out.
RECORDS = {
    80: [
        *(f"step_7b_W1_narrow_none_2048_{kernel}" for kernel in KERNELS),
        "step_7b_W1_narrow_selective_4096_cudnn", "step_1b_W1", "gemm_smoke", "attention_smoke",
        "ops_smoke", "step_7b_W2_10_bytes",
    ],
    141: [
        *(f"step_7b_W1_narrow_none_16384_{kernel}" for kernel in KERNELS),
        "step_7b_W1_narrow_selective_32768_cudnn", "step_1b_W1", "step_7b_W1", "gemm_smoke",
        "attention_smoke", "ops_smoke", "step_7b_W2", "step_7b_W1_bfloat16_gradients",
        "step_13b_W1_10_bytes",
    ],
}  # fmt: skip
LEFT_OUT = {"build", "peers", "sanitizer"}
TOO_LARGE: dict[int, set[str]] = {
    80: {"step_7b_W1", "step_13b", "step_7b_W1_bfloat16_gradients"}, 141: set(),
}  # fmt: skip
LOGS = (
    "device", "attention_kernels", "engine_numbers", "ops_suite", "recorded", "suite_test_kernel_listing",
    "suite_test_rms_norm_cuda",
)  # fmt: skip


def copy_tree(to: Path) -> None:
    """Copy what travels to another machine: the tree as it is checked out, and the built package."""
    root, without_caches = TESTS.parent, shutil.ignore_patterns("__pycache__", ".*_cache")
    for name in ("benchmarks", "csrc", "scripts", "tests"):
        shutil.copytree(root / name, to / name, ignore=without_caches)
    shutil.copytree(Path(fastsft.__file__).parent, to / "python" / "fastsft", ignore=without_caches)
    shutil.copy(root / "pyproject.toml", to)
    shutil.rmtree(to / "benchmarks" / "results")


def environment_of(device: FakeDevice, home: Path) -> dict[str, str]:
    """Return the environment of a machine on which nobody has worked, but for the device."""
    home.mkdir()
    own = {name: value for name, value in device.environment().items() if name.startswith("FAKE_DEVICE")}
    return {
        **own, "PATH": os.environ["PATH"], "HOME": str(home), "PYTHONPATH": str(HERE / "boot"),
        "PYTHON": sys.executable, "SMALL": "rms_norm", "OMP_NUM_THREADS": "1",
    }  # fmt: skip


def call(tree: Path, environment: dict[str, str]) -> tuple[set[str], set[str]]:
    """Call gpu.sh in `tree`; return what it left out, and the names in the archive of its results."""
    out = tree.parent / "out"
    out.mkdir()
    done = subprocess.run(
        ["bash", "benchmarks/gpu.sh", "3000"], cwd=tree, env={**environment, "OUT": str(out)},
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    headings = [line for line in done.stdout.splitlines() if line.startswith("== ")]
    assert set(headings) <= set((out / "gpu.log").read_text().splitlines())
    left_out = {line.split()[1].rstrip(":") for line in headings if ": left out" in line}
    with tarfile.open(out / "results.tgz") as packed:
        return left_out, set(packed.getnames())


def record(tree: Path, name: str) -> Any:
    return json.loads((tree / "benchmarks" / "results" / f"{name}.json").read_text())


@pytest.mark.parametrize("gib", RECORDS)
def test_every_step_leaves_its_record(
    gib: int, fake_device: Callable[..., FakeDevice], tmp_path: Path
) -> None:
    tree = tmp_path / "tree"
    copy_tree(tree)
    device = fake_device(settings={"MEMORY_GIB": gib, "FREE_MIB": FREE_MIB})
    left_out, names = call(tree, environment_of(device, tmp_path / "home"))
    assert left_out == LEFT_OUT | TOO_LARGE[gib]
    assert {f"benchmarks/results/{name}.json" for name in RECORDS[gib]} == {
        name for name in names if name.startswith("benchmarks/results/")
    }
    assert {f"build/gpu/{name}.log" for name in LOGS} <= names
    for name in RECORDS[gib]:
        found = record(tree, name)
        gpu = found.get("gpu") or found["hardware"]["gpu"]
        assert gpu.startswith("Fake CUDA device")  # it passes for no record of a GPU
    assert not device.lines("wrong_calls")
