"""A rank that dies, or does not come: every other process ends soon, with one line that says where it was."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import fastsft

PROGRAM = Path(__file__).with_name("lost_rank_program.py")
PACKAGE = Path(fastsft.__file__).parents[1]


def start(ranks: int, folder: Path, *words: str) -> list[subprocess.Popen[str]]:
    paths = os.pathsep.join([str(PACKAGE), str(PROGRAM.parents[1]), str(PROGRAM.parents[1] / "support")])
    processes = []
    for rank in range(ranks):
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
        env = {**os.environ, **{k: str(v) for k, v in place.items()}, "PYTHONPATH": paths}
        env["OMP_NUM_THREADS"] = "1"
        command = [sys.executable, str(PROGRAM), str(folder), *words]
        processes.append(subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True))
    return processes


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 120
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} never came"
        time.sleep(0.05)


def ends(process: subprocess.Popen[str], seconds: float) -> tuple[int, str]:
    """Status and the lines about errors; kills what is still there after `seconds`."""
    try:
        _, text = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return process.returncode, "\n".join(line for line in text.splitlines() if "error: " in line)


def test_a_killed_rank_ends_the_others_with_one_line_each(tmp_path: Path) -> None:
    processes = start(3, tmp_path, "--timeout", "20")
    for rank in range(3):
        wait_for(tmp_path / f"rank-{rank}-step-3")
    processes[1].send_signal(signal.SIGKILL)
    for rank in (0, 2):
        status, text = ends(processes[rank], 20 + 30)
        assert status == 3 and text.count("\n") == 0
        assert (
            f"error: rank {rank} of 3, step " in text and "last collective: " in text and "failed: " in text
        )
    assert ends(processes[1], 5)[0] == -signal.SIGKILL


@pytest.mark.thorough
def test_a_rank_that_does_not_come_is_waited_for_so_long(tmp_path: Path) -> None:
    """The groups' timeout is long here: the engine's watchdog ends the process."""
    processes = start(2, tmp_path, "--timeout", "100", "--watchdog", "3", "--absent", "1")
    status, text = ends(processes[0], 60)
    processes[1].kill()
    processes[1].communicate()
    assert status == 3
    assert "error: rank 0 of 2, step 3, forward, last collective: all_gather" in text
    assert "waited 3 s in vain" in text
