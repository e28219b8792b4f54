"""Ranks that leave right after a collective: the end of the interpreter meets no thread of gloo.

Such a thread holds the tensors of a collective a moment longer than the caller. Were the last to let one go,
it would ask an ended interpreter for its lock, which Python 3.11 answers with an abort.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fastsft.ranks.store import HeldPort

RANKS = 4
# Threads of gloo that get the processor only when the main thread waits: the last to let a tensor go.
PROGRAM = """
import atexit, os, sys
from fastsft.ranks import process_group as launcher
from fastsft.program.main import run_script

def work():
    launcher.meet(60)
    launcher.gather_objects(0)
    processor = min(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {processor})
    slow = [task for task in map(int, os.listdir("/proc/self/task"))
            if open(f"/proc/self/task/{task}/comm").read().startswith("pt_gloo_runloop")]
    assert slow
    for task in slow:
        os.sched_setaffinity(task, {processor})
        os.sched_setscheduler(task, os.SCHED_IDLE, os.sched_param(0))
    atexit.register(print, "exit functions run", flush=True)
    launcher.gather_objects(0)
    if sys.argv[2] != "0":
        raise SystemExit(int(sys.argv[2]))

run_script(work) if sys.argv[1] == "program" else work()
"""

# Rank 0, which serves the store, finds an error while another rank is still at the end of an exchange.
SLOW_RANK = """
import time
from fastsft.ranks import process_group as launcher
from fastsft.ranks.store import own_store
from fastsft.program.main import run_script

def work():
    launcher.meet(60)
    if launcher.launch().rank:
        time.sleep(0.4)
        with launcher.host_collective("barrier"):
            own_store().check(["a key"])
    raise ValueError("expected a good flag")

run_script(work)
"""


def run_ranks(program: Path, *words: str) -> tuple[list[int], list[str]]:
    """Run a program on all ranks; return each rank's exit status and output."""
    port = HeldPort()
    shared = {
        **os.environ, "WORLD_SIZE": str(RANKS), "LOCAL_WORLD_SIZE": str(RANKS), "OMP_NUM_THREADS": "1",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port.number),
    }  # fmt: skip
    ranks = [
        subprocess.Popen(
            [sys.executable, str(program), *words],
            env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for rank in range(RANKS)
    ]  # fmt: skip
    said = [rank.communicate(timeout=150)[0] for rank in ranks]
    port.close()
    return [rank.returncode for rank in ranks], said


@pytest.mark.variants("program-143")
@pytest.mark.parametrize("form, status", [("program", 143), ("program", 0), ("script", 0), ("script", 143)])
def test_no_rank_aborts(form: str, status: int, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    statuses, said = run_ranks(tmp_path / "program.py", form, str(status))
    assert statuses == [status] * RANKS, said
    assert all(words.count("exit functions run") == 1 for words in said), said


def test_an_error_of_all_ranks_is_the_error_of_each(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(SLOW_RANK)
    statuses, said = run_ranks(tmp_path / "program.py")
    assert statuses == [1] * RANKS, said
    assert said == [f"rank {rank}: error: expected a good flag\n" for rank in range(RANKS)]
