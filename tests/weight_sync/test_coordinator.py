"""Saves run in the background, one of a name at a time; a failure is told, kept, and raised once."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from fastsft.weight_sync import CheckpointCoordinator, CheckpointMonitor
from weight_sync_parts.trinity_monitor import TrinityMonitor


def fail() -> None:
    raise OSError("disk full")


def announce(coordinator: CheckpointCoordinator, step: int) -> None:
    asyncio.run(coordinator.register_and_monitor(step, True, state_dict_thread_count=1))


@pytest.mark.parametrize("first", ["save", "announce"])
def test_one_pair_of_calls_publishes_a_step(tmp_path: Path, first: str) -> None:
    monitor = TrinityMonitor(str(tmp_path))
    coordinator = CheckpointCoordinator(monitor)
    if first == "announce":
        announce(coordinator, 3)
    coordinator.save_async("model_state_dict", lambda: None, 3, is_state_dict=True)
    coordinator.wait_all()
    if first == "save":
        announce(coordinator, 3)
    assert monitor.calls == [("started",), ("finished", 3, True)]
    assert (tmp_path / "latest_state_dict_iteration.txt").read_text() == "3"


def test_saves_of_a_name_follow_each_other() -> None:
    order: list[str] = []
    coordinator = CheckpointCoordinator()

    def slow() -> None:
        time.sleep(0.1)
        order.append("first")

    coordinator.save_async("model", slow, 1)
    coordinator.save_async("model", lambda: order.append("second"), 2)
    coordinator.wait_all()
    assert order == ["first", "second"]


def test_wait_all_raises_a_failure_once(tmp_path: Path) -> None:
    monitor = CheckpointMonitor(default_local_dir=str(tmp_path))
    coordinator = CheckpointCoordinator(monitor)
    coordinator.save_async("model", fail, 3, is_state_dict=True)
    announce(coordinator, 3)
    with pytest.raises(OSError, match="disk full"):
        coordinator.wait_all()
    coordinator.wait_all()
    assert monitor.failures() == {3: "OSError: disk full"}
    assert not (tmp_path / "latest_state_dict_iteration.txt").exists()


def test_the_next_save_raises_a_failure_and_is_saved_all_the_same(tmp_path: Path) -> None:
    monitor = CheckpointMonitor("single_thread", str(tmp_path))
    coordinator = CheckpointCoordinator(monitor)
    coordinator.save_async("model", fail, 3, is_state_dict=True)
    saved = threading.Event()
    with pytest.raises(OSError, match="disk full"):
        coordinator.save_async("model", saved.set, 4, is_state_dict=True)
    announce(coordinator, 4)
    coordinator.wait_all()
    assert saved.is_set()
    assert (tmp_path / "latest_state_dict_iteration.txt").read_text() == "4"


def test_an_unmodified_monitor_hears_nothing_of_a_failure(tmp_path: Path) -> None:
    monitor = TrinityMonitor(str(tmp_path))
    coordinator = CheckpointCoordinator(monitor)
    with pytest.raises(OSError, match="disk full"):
        coordinator.save_sync(fail, 3)
    assert monitor.calls == [("started",)]


def test_save_sync_saves_here(tmp_path: Path) -> None:
    monitor, threads = TrinityMonitor(str(tmp_path)), []
    coordinator = CheckpointCoordinator(monitor)
    coordinator.save_sync(lambda: threads.append(threading.current_thread()), 5, False)
    assert threads == [threading.main_thread()]
    assert monitor.calls == [("started",), ("finished", 5, False)]


def test_a_long_save_keeps_its_lease() -> None:
    beats: list[Any] = []

    class Monitor:
        def notify_started(self, **_: Any) -> None: ...
        def notify_finished(self, *_: Any, **__: Any) -> None: ...
        def notify_failed(self, *_: Any, **__: Any) -> None: ...
        def heartbeat(self, **who: Any) -> None:
            beats.append(who)

    coordinator = CheckpointCoordinator(Monitor(), heartbeat_s=0.05)
    coordinator.save_async("model", lambda: time.sleep(0.3), 1)
    coordinator.wait_all()
    count = len(beats)
    assert count >= 3 and set(beats[0]) == {"node_id", "job_id", "lease_s"}
    time.sleep(0.15)
    assert len(beats) <= count + 1


def test_waiting_can_end() -> None:
    coordinator, release = CheckpointCoordinator(), threading.Event()
    coordinator.save_async("model", lambda: release.wait(10), 1)
    with pytest.raises(RuntimeError, match=r"save model is still running after 0\.05 seconds"):
        coordinator.wait_all(timeout=0.05)
    release.set()
    coordinator.wait_all()


def test_a_process_that_ends_waits_for_its_writers_and_says_what_failed(tmp_path: Path) -> None:
    program = f"""
import time
from pathlib import Path
from fastsft.weight_sync import CheckpointCoordinator
def save():
    time.sleep(0.3)
    Path({str(tmp_path)!r}, "shard").write_text("whole")
    raise OSError("and then the disk was full")
CheckpointCoordinator().save_async("model", save, 1)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100)
    assert (tmp_path / "shard").read_text() == "whole"
    assert "a save failed and nobody asked for its outcome: and then the disk was full" in done.stderr


class Dead:
    """A monitor that refuses, or never answers."""

    def __init__(self, answer: str) -> None:
        self._answer = answer

    async def notify_started(self, *_: Any, **__: Any) -> None:
        if self._answer == "refuses":
            raise OSError("actor died")
        await asyncio.sleep(3600)


@pytest.mark.parametrize(("answer", "message"), [
    ("refuses", "actor died"), ("is silent", r"notify_started: no answer within 0\.1 seconds"),
])  # fmt: skip
def test_a_save_that_its_monitor_keeps_from_running_is_abandoned(answer: str, message: str) -> None:
    told: list[BaseException] = []

    class Save:
        def __call__(self) -> None:
            raise AssertionError("it must not run")

        def abandon(self, error: BaseException) -> None:
            told.append(error)

    coordinator = CheckpointCoordinator(Dead(answer), deadline_s=0.1)
    coordinator.save_async("model", Save(), 1)
    with pytest.raises((OSError, RuntimeError), match=message):
        coordinator.wait_all(timeout=60)
    assert len(told) == 1


def test_a_save_that_does_not_end_gives_its_successor_up() -> None:
    release = threading.Event()
    coordinator = CheckpointCoordinator(deadline_s=0.1)
    coordinator.attach("model", lambda: release.wait(60))
    for again in (lambda: coordinator.attach("model", release.set), coordinator.wait_all):
        with pytest.raises(RuntimeError, match=r"save model is still running after 0\.1 seconds"):
            again()
    assert not release.is_set()
    release.set()
    coordinator.wait_all(timeout=60)
