"""A writer killed at any moment: no reader ever takes what it left, and no iteration file names it."""

from __future__ import annotations

import gc
import os
import random
import signal
import time
from pathlib import Path

import pytest
import torch

from fastsft.weight_sync import (
    CheckpointCoordinator,
    CheckpointMonitor,
    fsdp_save_state_dict,
    layout,
    read_state_dict,
)
from weight_sync_parts.modules import make_engine
from weight_sync_parts.save_world import FORMATS, LOGGER

ROWS = 1500


def save_for_ever(job: Path, save_format: str) -> None:
    """Steps 1, 2, 3, ...: every element of a step's weights is its number."""
    module = torch.nn.Linear(ROWS, ROWS, bias=False)
    engine = make_engine(module, "plain")
    monitor = CheckpointMonitor(default_local_dir=str(job))
    coordinator = CheckpointCoordinator(monitor)
    step = monitor.latest_steps()[1]
    while True:
        step += 1
        torch.nn.init.constant_(module.weight, step)
        path = job / f"global_step_{step}" / "actor"
        fsdp_save_state_dict(engine, str(path), step, coordinator, LOGGER, format=save_format)
        monitor.register_thread_count(step, state_dict_thread_count=1)
        monitor.monitor_step(step, True)


def killed(job: Path, save_format: str, after: float) -> None:
    child = os.fork()
    if child == 0:
        try:
            os.nice(5)
            gc.freeze()  # what is garbage of the parent may not end here (ranks.py says why)
            torch.set_num_threads(1)  # OpenMP's threads were not copied
            save_for_ever(job, save_format)
        finally:
            os._exit(1)
    try:
        time.sleep(after)
    finally:  # else it saves for ever, and keeps the pipes to pytest-xdist open
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def check(job: Path) -> int:
    """What is complete holds one step's number throughout; the file names such a step. Returns the newest."""
    complete = 0
    for step, directory in layout.step_directories(job).items():
        try:
            weight = read_state_dict(directory / "actor", checksums=True)["weight"]
        except ValueError:
            continue
        assert torch.equal(weight, torch.full((ROWS, ROWS), float(step)))
        complete = step
    named = layout.read_iteration(job / layout.STATE_DICT_FILE)
    if named is not None:
        assert not layout.problems(job / f"global_step_{named}" / "actor", checksums=True)
        assert named <= complete
    return complete


def kill_often(tmp_path: Path, times: int) -> int:
    generator, cut = random.Random(0), 0
    for turn in range(times):
        job = tmp_path / str(turn % 7)
        job.mkdir(exist_ok=True)
        killed(job, FORMATS[turn % 3], generator.uniform(0.02, 0.5))
        newest = check(job)
        directories = layout.step_directories(job)
        cut += any(step > newest for step in directories)
        monitor = CheckpointMonitor(default_local_dir=str(job))
        assert monitor.latest_steps() == (0, newest)
        monitor.prune(keep=1)
    return cut


def test_five_kills(tmp_path: Path) -> None:
    kill_often(tmp_path, 5)


@pytest.mark.chaos
def test_a_hundred_kills(tmp_path: Path) -> None:
    assert kill_often(tmp_path, 100) > 30  # so many died with a step half written
