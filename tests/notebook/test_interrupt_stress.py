"""Interrupts of `fastsft.launch` at any moment of a run of two ranks, on a machine with other work."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

import fastsft
from launched_runs import FLAGS, processes_with

PACKAGE = Path(fastsft.__file__).parents[1]
STACKS = signal.SIGUSR2  # every process writes the stacks of its threads into a file
WATCHED = """
import faulthandler, os, pathlib, signal
stacks = open(pathlib.Path(os.environ["STACKS"]) / f"{os.getpid()}.txt", "w")
faulthandler.register(signal.SIGUSR2, file=stacks, all_threads=True)
"""
SCRIPT = WATCHED + "from fastsft.train import train\ntrain()\n"
DRIVER = (
    WATCHED
    + """
import json, sys, fastsft
fastsft.launch(json.loads(sys.argv[1]), script=sys.argv[2], num_processes=2)
"""
)
SECONDS = 100.0


@contextlib.contextmanager
def busy_machine() -> Iterator[None]:
    """As many processes that compute as there are processors."""
    code = "while True: pass"
    busy = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def interrupted(folder: Path, pause_s: float, save_steps: int) -> None:
    """A run that is interrupted so many seconds after its second step leaves with a whole checkpoint."""
    mark = uuid.uuid4().hex
    script = folder / "script.py"
    script.write_text(SCRIPT)
    flags = {**FLAGS, "output_dir": str(folder / "out"), "max_steps": 100_000}
    flags |= {"save_strategy": "steps", "save_steps": save_steps, "save_total_limit": 1}
    words = json.dumps([word for name, value in flags.items() for word in (f"--{name}", str(value))])
    env = {
        "PYTHONPATH": str(PACKAGE),
        "OMP_NUM_THREADS": "1",
        "FASTSFT_TEST_MARK": mark,
        "STACKS": str(folder),
    }
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, words, str(script)], env={**os.environ, **env}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    try:
        assert driver.stdout is not None
        said = next((line for line in driver.stdout if "step 2/" in line), None)
        assert said is not None, driver.stderr and driver.stderr.read()[-3000:]
        time.sleep(pause_s)
        os.killpg(driver.pid, signal.SIGINT)
        out, err = driver.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        for pid in processes_with(mark):
            os.kill(pid, STACKS)
        time.sleep(2)
        pytest.fail("\n".join(f"{path.name}:\n{path.read_text()}" for path in folder.glob("*.txt")))
    finally:
        for pid in processes_with(mark):
            os.kill(pid, signal.SIGKILL)
        driver.communicate()
    assert "KeyboardInterrupt: after step" in err.splitlines()[-1], err[-3000:]
    assert "the ranks save a checkpoint and leave" in out
    assert any((path / "manifest.json").is_file() for path in (folder / "out").glob("checkpoint-*"))


@pytest.mark.chaos
@pytest.mark.parametrize("block", range(6))
def test_ten_interrupts(tmp_path: Path, block: int) -> None:
    chosen = random.Random(block)
    with busy_machine():
        for number in range(10):
            folder = tmp_path / str(number)
            folder.mkdir()
            interrupted(folder, chosen.uniform(0.0, 1.5), chosen.choice([2, 3, 1000]))


LOOP = """
import queue, random, signal, subprocess, sys, threading, time
from fastsft.program.interrupts import Interrupts
child = subprocess.Popen(["sleep", "1000"])
try:
    for trial in range(400):
        messages, ended = queue.Queue(), threading.Event()
        def put():
            while not ended.is_set():
                messages.put("x")
                time.sleep(0.0003)
        threading.Thread(target=put, daemon=True).start()
        with Interrupts() as interrupts:
            threading.Timer(random.uniform(0.0005, 0.005), signal.raise_signal, [signal.SIGINT]).start()
            while not interrupts.count:
                child.poll()
                try:
                    messages.get(timeout=0.1)
                except queue.Empty:
                    pass
        ended.set()
        assert messages.mutex.acquire(timeout=10), "the queue's lock"
        assert child._waitpid_lock.acquire(timeout=10), "the process's lock"
        child._waitpid_lock.release()
finally:
    child.kill()
print("free")
"""


@pytest.mark.thorough
def test_four_hundred_interrupts_leave_no_lock_taken() -> None:
    """A KeyboardInterrupt in this loop leaves one of them taken once in some hundreds of times."""
    env = {**os.environ, "PYTHONPATH": str(PACKAGE)}
    done = subprocess.run([sys.executable, "-c", LOOP], env=env, capture_output=True, text=True, timeout=300)
    assert done.stdout == "free\n", done.stderr[-3000:]
