"""A monitor forgets steps that are over: nobody can tell, and it does not grow."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fastsft.weight_sync import CheckpointMonitor, layout
from fastsft.weight_sync import monitor as monitors

Event = Callable[[CheckpointMonitor], Any]


class Remembering(CheckpointMonitor):
    """Forgets nothing."""

    def _forget_past(self) -> None:
        pass


def events_of(step: int, generator: random.Random) -> list[list[Event]]:
    """One save of a step: what its trainer tells in order, and each of its writers."""
    full, finished = generator.random() < 0.3, generator.random() < 0.8
    counts = {"state_dict_thread_count": 1, "checkpoint_thread_count": 2 if full else 0}
    trainer: list[Event] = [
        lambda monitor: monitor.register_thread_count(step, **counts),
        lambda monitor: monitor.monitor_step(step, not full),
    ]

    def report(weights: bool, good: bool) -> Event:
        if good:
            return lambda monitor: monitor.notify_finished(step, weights)
        return lambda monitor: monitor.notify_failed(step, f"disk full at {step}", weights)

    writers = [report(weights, finished or generator.random() < 0.5) for weights in (True, False, False)]
    return [trainer, *([writer] for writer in (writers if full else writers[:1]))]


def mixed(generator: random.Random, saves: int) -> Iterator[Event]:
    """Saves of growing steps, now and then one again; each ends while up to six later ones go on."""
    going: list[list[Event]] = []
    step = 0
    for _ in range(saves):
        again = generator.random() < 0.15
        step = step if again else step + 1
        going += events_of(max(1, step - generator.randrange(4)) if again else step, generator)
        while len(going) > generator.randrange(12):
            index = generator.randrange(len(going))
            yield going[index].pop(0)
            going = [left for left in going if left]
    for left in going:
        yield from left


@pytest.fixture
def all_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed save of the published step is looked for on the disk: here everything is there."""
    monkeypatch.setattr("fastsft.weight_sync.layout.published_steps", lambda job: tuple(
        layout.read_iteration(job / name) or 0 for name in (layout.CHECKPOINT_FILE, layout.STATE_DICT_FILE)
    ))  # fmt: skip


@pytest.mark.parametrize("seed", range(4))
def test_what_is_published_is_what_a_monitor_without_an_end_publishes(
    tmp_path: Path, all_complete: None, seed: int
) -> None:
    ours = CheckpointMonitor(default_local_dir=str(tmp_path / "ours"))
    theirs = Remembering(default_local_dir=str(tmp_path / "theirs"))
    for number, event in enumerate(mixed(random.Random(seed), 300)):
        for monitor in (ours, theirs):
            event(monitor)
        assert ours.latest_steps() == theirs.latest_steps(), number
        assert ours.failures() == theirs.failures(), number
        for name in (layout.CHECKPOINT_FILE, layout.STATE_DICT_FILE):
            assert layout.read_iteration(tmp_path / "ours" / name) == layout.read_iteration(
                tmp_path / "theirs" / name
            )
    assert len(ours._saves) - len(ours.failures()) < 25 < len(theirs._saves) - len(theirs.failures())


def test_two_hundred_steps_leave_one(tmp_path: Path) -> None:
    monitor = CheckpointMonitor(default_local_dir=str(tmp_path))
    for step in range(1, 201):
        monitor.register_thread_count(step, state_dict_thread_count=1)
        monitor.monitor_step(step, True)
        monitor.notify_finished(step, True)
    assert monitor.latest_steps() == (0, 200) and len(monitor._saves) == 1


def test_of_failures_the_newest_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitors, "KEPT_FAILURES", 3)
    monitor = CheckpointMonitor(default_local_dir=str(tmp_path))
    for step in range(1, 8):
        monitor.register_thread_count(step, state_dict_thread_count=1)
        monitor.monitor_step(step, True)
        monitor.notify_failed(step, "disk full", True)
    assert monitor.failures() == dict.fromkeys((5, 6, 7), "disk full") and monitor.latest_steps() == (0, 0)


def test_leases_that_ended_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "global_step_1").mkdir()
    monkeypatch.setattr(layout, "is_complete", lambda path: True)
    monitor = CheckpointMonitor(default_local_dir=str(tmp_path))
    for number in range(100):
        monitor.acquire_lease(1, f"reader {number}", seconds=-1.0)
    monitor.acquire_lease(1, "reader", seconds=60.0)
    assert list(monitor._leased()) == [("reader", 1)]
