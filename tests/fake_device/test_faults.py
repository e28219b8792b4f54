"""Faults of the fake device: what a user reads, the exit status, and the checkpoint that remains."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fake_device.running import GOLDEN, FakeDevice, train
from fake_device.test_training import FLAGS, data  # noqa: F401  a fixture

FakeDevices = Callable[..., FakeDevice]


def test_out_of_memory(data: Path, fake_device: FakeDevices, tmp_path: Path) -> None:  # noqa: F811
    """cudaMalloc refuses, though cudaMemGetInfo has said that there is room."""
    device = fake_device(settings={"LIMIT_MIB": 2})
    done = train(device, tmp_path / "out", {**FLAGS, "data_path": data, "bf16": True})
    assert done.returncode == 1
    assert "error: out of memory; give the run more" in done.stderr
    assert "Traceback" not in done.stderr
    device.check()


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_failing_device(ranks: int, data: Path, fake_device: FakeDevices, tmp_path: Path) -> None:  # noqa: F811
    device = fake_device(settings={"FAIL_AT": 400}, devices=ranks)
    flags = {**FLAGS, "data_path": data, "bf16": True, "save_steps": 1}
    done = train(device, tmp_path / "out", flags, ranks)
    assert done.returncode == 1
    assert "the GPU failed: " in done.stderr
    assert "terminate called" not in done.stderr and "core dumped" not in done.stderr
    assert device.lines("failures") and not device.lines("wrong_calls")


def test_a_killed_rank(data: Path, fake_device: FakeDevices, tmp_path: Path) -> None:  # noqa: F811
    """The other rank leaves with status 3 when the time of a step is over."""
    device = fake_device(devices=2, settings={"PATIENCE": 200})
    flags = {
        **FLAGS, "data_path": data, "fsdp": "full_shard", "max_steps": 100000, "save_strategy": "no",
        "phase_timeouts": "step=5",
    }  # fmt: skip
    words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    ranks = []
    for rank in range(2):
        launch = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 29400 + os.getpid() % 500}
        environment = {name: str(value) for name, value in {**launch, **place}.items()}
        command = [sys.executable, "-m", "fastsft.train", "--output_dir", str(tmp_path / "out"), *words]
        with (tmp_path / f"{rank}.txt").open("w") as log:
            ranks.append(
                subprocess.Popen(
                    command, cwd=GOLDEN, env={**device.environment(), **environment}, stdout=log, stderr=log
                )
            )
    try:
        deadline = time.monotonic() + 120
        while "'loss'" not in (tmp_path / "0.txt").read_text():
            assert time.monotonic() < deadline, (tmp_path / "0.txt").read_text()
            time.sleep(0.2)
        ranks[1].send_signal(signal.SIGKILL)
        assert ranks[0].wait(timeout=60) == 3, (tmp_path / "0.txt").read_text()
    finally:
        for process in ranks:
            process.kill()
    assert "error: rank 0 of 2, step " in (tmp_path / "0.txt").read_text()


def test_the_device_says_that_it_is_fake(fake_device: FakeDevices) -> None:
    program = (
        "import json, torch; print(json.dumps([torch.cuda.is_available(), torch.cuda.get_device_name()]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=fake_device().environment(), capture_output=True, text=True
    )
    available, name = json.loads(done.stdout)
    assert available and name.startswith("Fake CUDA device in host memory")
