"""The GPU benchmarks run from beginning to end on the CPU with small sizes. No speed is tested."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

import bench_attention
import bench_gemm
import bench_ops
import gpu_timing

FOLDER = Path(bench_gemm.__file__).parent


@pytest.mark.parametrize(
    "module,record,rows",
    [(bench_gemm, "gemm_smoke", 46), (bench_attention, "attention_smoke", 15), (bench_ops, "ops_smoke", 14)],
)
def test_smoke_run_writes_every_row(
    module: object, record: str, rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["bench", "--smoke", "--results", str(tmp_path)])
    monkeypatch.setattr(gpu_timing, "repeat_count", lambda *_: 1)
    module.main()  # type: ignore[attr-defined]
    written = json.loads((tmp_path / f"{record}.json").read_text())
    assert len(written["rows"]) == rows
    assert {"torch", "fastsft"} <= set(written["versions"])


def test_wrong_products_void_the_timing(monkeypatch: pytest.MonkeyPatch) -> None:
    product = next(iter(bench_gemm.products("x", 8, (16, 32), gpu_timing.torch.device("cpu"))))
    monkeypatch.setattr(bench_gemm, "torch_side", lambda operands: operands[2].fill_(1))
    with pytest.raises(SystemExit, match="the timing is void"):
        bench_gemm.check(product["operands"])


@pytest.mark.parametrize("workload", ["multi_turn", "short", "2048"])
def test_lengths_fill_the_batch(workload: str) -> None:
    lengths = bench_attention.lengths_of(workload, 16384)
    assert sum(lengths) == 16384 and all(0 < length <= 2048 for length in lengths)


@pytest.mark.parametrize(
    "script", ["gpu.sh", "build_in_place.sh", "carry_wheels.sh", "sanitize.sh", "carry_peers.sh"]
)
def test_scripts_are_runnable_shell(script: str) -> None:
    path = FOLDER / script
    assert path.stat().st_mode & 0o100
    subprocess.run(["bash", "-n", str(path)], check=True)


def test_gpu_run_keeps_what_it_has_and_stops_without_a_device(tmp_path: Path) -> None:
    """In a copy of its own: the script writes beside itself."""
    (tmp_path / "benchmarks" / "results").mkdir(parents=True)
    shutil.copy(FOLDER / "gpu.sh", tmp_path / "benchmarks")
    kept = tmp_path / "kept"
    kept.mkdir()
    env = {**os.environ, "PYTHON": "false", "OUT": str(kept)}
    command = ["bash", "benchmarks/gpu.sh", "100", "device", "gemm"]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 1 and "== failed: device" in done.stdout and "== gemm" not in done.stdout
    with tarfile.open(kept / "results.tgz") as packed:
        assert "build/gpu/device.log" in packed.getnames()
    done = subprocess.run([*command[:2], "10", "ops"], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 1 and "to go on: benchmarks/gpu.sh 10 build ops" in done.stdout


SLOW = """#!/usr/bin/env bash
case "$*" in *bench_step.py*) sleep 60 ;; esac
"""


def test_gpu_run_names_the_step_that_its_seconds_cut_off(tmp_path: Path) -> None:
    (tmp_path / "benchmarks" / "results").mkdir(parents=True)
    shutil.copy(FOLDER / "gpu.sh", tmp_path / "benchmarks")
    interpreter = tmp_path / "interpreter"
    interpreter.write_text(SLOW)
    interpreter.chmod(0o755)
    command = ["bash", "benchmarks/gpu.sh", "6", "step", "ops"]
    script = tmp_path / "benchmarks" / "gpu.sh"
    script.write_text(script.read_text().replace("< 30", "< 2").replace("< 60", "< 4"))
    env = {**os.environ, "PYTHON": str(interpreter)}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=100)
    assert done.returncode == 1 and "failed" not in done.stdout
    assert "== step_7b_W1_narrow_none_16384_flash2 (" in done.stdout
    for name in ("step_7b_W1_narrow_none_16384_flash2", "step_1b_W1", "step_7b_W1"):
        assert f"{name}: left out" in done.stdout
    assert "to go on: benchmarks/gpu.sh 6 build step ops" in done.stdout


INTERPRETER = """#!/usr/bin/env bash
case "$*" in
  *" pip install "*) while [[ $1 != --target ]]; do shift; done; mkdir -p "$2"; touch "$2/trl.py" ;;
  *bench_peers.py*) for folder in ${PYTHONPATH//:/ }; do [[ -e $folder/trl.py ]] && exit 0; done; exit 1 ;;
esac
"""


def test_each_step_with_peers_unpacks_them_apart_from_the_results(tmp_path: Path) -> None:
    (tmp_path / "benchmarks" / "results").mkdir(parents=True)
    shutil.copy(FOLDER / "gpu.sh", tmp_path / "benchmarks")
    for folder in ("kept", ".peers"):
        (tmp_path / folder).mkdir()
    (tmp_path / ".peers" / "trl-0-py3-none-any.whl").touch()
    interpreter = tmp_path / "interpreter"
    interpreter.write_text(INTERPRETER)
    interpreter.chmod(0o755)
    env = {**os.environ, "PYTHON": str(interpreter), "OUT": str(tmp_path / "kept")}
    command = ["bash", "benchmarks/gpu.sh", "100", "peers_7b", "peers"]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("== peers_unpacked") == 1
    with tarfile.open(tmp_path / "kept" / "results.tgz") as packed:
        assert "build/gpu/peers.log" in packed.getnames()
        assert not [name for name in packed.getnames() if name.endswith(".py")]


def test_without_a_gpu_the_real_run_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_timing.torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="torch sees no GPU"):
        gpu_timing.device(smoke=None)
