"""What the monitor publishes, and when; whom it lets write; what a restart knows."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fastsft import _C
from fastsft.weight_sync import CheckpointMonitor, layout
from fastsft.weight_sync.monitor import STRATEGIES, Writers

CHECKPOINT, WEIGHTS = "latest_checkpointed_iteration.txt", "latest_state_dict_iteration.txt"


def published(job: Path) -> tuple[str | None, str | None]:
    texts = [(job / name).read_text() if (job / name).exists() else None for name in (CHECKPOINT, WEIGHTS)]
    return texts[0], texts[1]


def write_step(
    job: Path, step: int, *, full: bool = False, manifest: bool = True, optimizer: bool = False
) -> Path:
    """A step with one shard, whole or without its manifest."""
    part = job / f"global_step_{step}" / "actor"
    part.mkdir(parents=True)
    names = ["model_world_size_1_rank_0.pt", *(["optim_world_size_1_rank_0.pt"] if optimizer else [])]
    for name in names:
        (part / name).write_bytes(f"{name} of {step}".encode())
    if full:
        (part.parent / ".full_checkpoint").touch()
    if manifest:
        target = _C.AtomicDirectory(str(job), "part")
        for name in names:
            (Path(target.path) / name).write_bytes((part / name).read_bytes())
            _C.sync_file(str(Path(target.path) / name))
        files = [_C.digest_file(str(part / name)) for name in names]
        for path in part.iterdir():
            path.unlink()
        part.rmdir()
        target.commit("committed", _C.Manifest(step, 1, "0", files))
        (job / "committed").rename(part)
    return part


@pytest.mark.parametrize("order", ["finished first", "registered first"])
def test_weights_are_published_when_counted_and_announced(tmp_path: Path, order: str) -> None:
    monitor = CheckpointMonitor(default_local_dir=str(tmp_path))

    def save() -> None:
        monitor.notify_started("node", "job")
        monitor.notify_finished(4, True)

    if order == "finished first":
        save()
        assert published(tmp_path) == (None, None)
    monitor.register_thread_count(4, state_dict_thread_count=1)
    if order == "registered first":
        save()
    assert published(tmp_path) == (None, None)
    monitor.monitor_step(4, True)
    assert published(tmp_path) == (None, "4")
    assert monitor.latest_steps() == (0, 4)


def test_a_full_checkpoint_publishes_both_and_weights_first_when_they_are_ready(tmp_path: Path) -> None:
    monitor = CheckpointMonitor(default_local_dir=str(tmp_path))
    monitor.register_thread_count(2, state_dict_thread_count=1, checkpoint_thread_count=2)
    monitor.monitor_step(2)
    monitor.notify_finished(2, True)
    assert published(tmp_path) == (None, "2")
    monitor.notify_finished(2)
    assert published(tmp_path) == (None, "2")
    monitor.notify_finished(2)
    assert published(tmp_path) == ("2", "2")


def test_a_checkpoint_without_separate_weights_publishes_both_at_its_end(tmp_path: Path) -> None:
    monitor = CheckpointMonitor(default_local_dir=str(tmp_path))
    monitor.register_thread_count(2, checkpoint_thread_count=1)
    monitor.monitor_step(2)
    assert published(tmp_path) == (None, None)
    monitor.notify_finished(2)
    assert published(tmp_path) == ("2", "2")


def test_an_older_step_that_is_late_is_ignored(tmp_path: Path) -> None:
    monitor = CheckpointMonitor(default_local_dir=str(tmp_path))
    for step in (6, 4):
        monitor.register_thread_count(step, state_dict_thread_count=1)
        monitor.monitor_step(step, True)
        monitor.notify_finished(step, True)
    assert published(tmp_path) == (None, "6")


@pytest.mark.parametrize("order", ["failed first", "registered first"])
@pytest.mark.parametrize("again", ["finished first", "registered first"])
def test_a_failed_step_is_not_published_until_it_is_saved_again(
    tmp_path: Path, order: str, again: str
) -> None:
    monitor = CheckpointMonitor(default_local_dir=str(tmp_path))

    def register() -> None:
        monitor.register_thread_count(3, state_dict_thread_count=1)
        monitor.monitor_step(3, True)

    def in_order(registered_first: bool, report: Callable[[], None]) -> None:
        for call in (register, report) if registered_first else (report, register):
            call()

    in_order(order == "registered first", lambda: monitor.notify_failed(3, "disk full", True))
    assert published(tmp_path) == (None, None)
    assert monitor.failures() == {3: "disk full"}
    in_order(again == "registered first", lambda: monitor.notify_finished(3, True))
    assert (published(tmp_path), monitor.failures()) == ((None, "3"), {})


@pytest.mark.parametrize(
    "calls", sorted(set(itertools.permutations(["fail", "finish", "finish", "register"])))
)
def test_one_failure_of_several_saves_is_enough(tmp_path: Path, calls: tuple[str, ...]) -> None:
    monitor = CheckpointMonitor(default_local_dir=str(tmp_path))
    for call in calls:
        if call == "register":
            monitor.register_thread_count(3, checkpoint_thread_count=3)
            monitor.monitor_step(3)
        elif call == "finish":
            monitor.notify_finished(3)
        else:
            monitor.notify_failed(3, "disk full")
    assert published(tmp_path) == (None, None)


def enter_in_thread(writers: Writers, *who: str) -> threading.Event:
    entered = threading.Event()

    def enter() -> None:
        writers.enter(*who, None)
        entered.set()

    threading.Thread(target=enter, daemon=True).start()
    return entered


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_strategy_decides_who_writes_together(strategy: str) -> None:
    together = {
        "single_thread": [False, False, False],
        "single_process": [True, False, False],
        "single_node": [True, True, False],
        "unrestricted": [True, True, True],
    }[strategy]
    for other, expected in zip([("n", "j"), ("n", "k"), ("m", "j")], together, strict=True):
        writers = Writers(strategy)
        writers.enter("n", "j", None)
        entered = enter_in_thread(writers, *other)
        assert entered.wait(2.0 if expected else 0.1) == expected
        writers.leave("n", "j")
        assert entered.wait(2.0)


def test_a_writer_that_died_does_not_block_for_ever() -> None:
    writers = Writers("single_thread")
    writers.enter("n", "dead", 0.2)
    began = time.monotonic()
    writers.enter("n", "alive", 30.0)
    assert 0.15 < time.monotonic() - began < 25.0  # of the 30 that it may wait
    waiting = enter_in_thread(writers, "n", "next")
    writers.renew("n", "alive", 30.0)
    assert not waiting.wait(0.1)
    writers.leave(None, None)  # as Trinity's coordinator: it does not say who
    assert waiting.wait(2.0)


def test_unknown_strategies_are_refused() -> None:
    with pytest.raises(ValueError, match="expected one of single_thread"):
        Writers("twice")


@pytest.mark.parametrize("content", [b"", b"garbage", b"4.5", b"\xff\xfe", b"-3", b"9", None])
def test_a_restart_takes_its_state_from_manifests(tmp_path: Path, content: bytes | None) -> None:
    for step in (2, 4):
        write_step(tmp_path, step)
    write_step(tmp_path, 6, manifest=False)
    damaged = write_step(tmp_path, 8)
    (damaged / "model_world_size_1_rank_0.pt").write_bytes(b"short")
    if content is not None:
        (tmp_path / WEIGHTS).write_bytes(content)
    monitor = CheckpointMonitor(default_local_dir=str(tmp_path))
    assert monitor.latest_steps() == (0, 4)
    assert published(tmp_path) == (None, "4")


def test_a_restart_believes_files_about_steps_that_others_saved(tmp_path: Path) -> None:
    write_step(tmp_path, 5, manifest=False, full=True)
    (tmp_path / CHECKPOINT).write_text("5")
    assert CheckpointMonitor(default_local_dir=str(tmp_path)).latest_steps() == (5, 5)
    assert published(tmp_path) == ("5", "5")


@pytest.mark.parametrize(("full", "optimizer", "checkpoint"), [(1, 1, 3), (1, 0, 0), (0, 1, 0)])
def test_a_full_checkpoint_is_marker_and_optimizer(
    tmp_path: Path, full: int, optimizer: int, checkpoint: int
) -> None:
    write_step(tmp_path, 3, full=bool(full), optimizer=bool(optimizer))
    assert CheckpointMonitor(default_local_dir=str(tmp_path)).latest_steps() == (checkpoint, 3)


def test_pruning_keeps_what_is_newest_leased_marked_or_unfinished(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4, 5, 6):
        write_step(tmp_path, step, full=step == 3, manifest=step not in (4, 6))
    monitor = CheckpointMonitor(default_local_dir=str(tmp_path))
    with pytest.raises(ValueError, match="complete step"):
        monitor.acquire_lease(4, "explorer")
    monitor.acquire_lease(2, "explorer")
    assert monitor.prune(keep=1) == [1]  # 4 has no manifest: it may be another program's
    assert sorted(path.name for path in tmp_path.glob("*step*")) == [
        f"global_step_{n}" for n in (2, 3, 4, 5, 6)
    ]
    monitor.release_lease(2, "explorer")
    assert monitor.prune(keep=1) == [2]
    with pytest.raises(ValueError, match="1 or more"):
        monitor.prune(keep=0)


def test_a_lease_ends_by_itself(tmp_path: Path) -> None:
    write_step(tmp_path, 1)
    write_step(tmp_path, 2)
    monitor = CheckpointMonitor(default_local_dir=str(tmp_path))
    monitor.acquire_lease(1, "explorer", seconds=0.0)
    assert monitor.prune(keep=1) == [1]


def test_nothing_goes_while_no_newer_step_is_complete(tmp_path: Path) -> None:
    write_step(tmp_path, 1)
    write_step(tmp_path, 2, manifest=False)
    assert CheckpointMonitor(default_local_dir=str(tmp_path)).prune(keep=1) == []


def test_an_upload_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="default_hdfs_dir"):
        CheckpointMonitor(default_local_dir=str(tmp_path), default_hdfs_dir="hdfs://x")


def test_a_file_that_names_only_a_damaged_step_goes(tmp_path: Path) -> None:
    (write_step(tmp_path, 2) / "model_world_size_1_rank_0.pt").write_bytes(b"short")
    (tmp_path / WEIGHTS).write_text("2")
    assert CheckpointMonitor(default_local_dir=str(tmp_path)).latest_steps() == (0, 0)
    assert published(tmp_path) == (None, None)


@pytest.mark.parametrize("told", ["notify_failed", "restart"])
def test_a_published_step_that_was_half_replaced_is_taken_back(tmp_path: Path, told: str) -> None:
    """The same step saved again, and that save ended between taking the manifest away and the new one."""
    write_step(tmp_path, 2)
    part = write_step(tmp_path, 4)
    monitor = CheckpointMonitor(default_local_dir=str(tmp_path))
    assert published(tmp_path) == (None, "4")
    (part / layout.MANIFEST).rename(part / layout.REPLACED_MANIFEST)
    if told == "restart":
        monitor = CheckpointMonitor(default_local_dir=str(tmp_path))
    else:
        monitor.notify_failed(4, "disk full", True)
    assert (monitor.latest_steps(), published(tmp_path)) == ((0, 2), (None, "2"))


def test_a_writer_waits_no_longer_than_its_deadline() -> None:
    writers = Writers("single_node", deadline_s=0.1)
    writers.enter("a", "1", None)
    message = r"single_node: others have been writing for 0\.1 seconds: 1 on a"
    with pytest.raises(RuntimeError, match=message):
        writers.enter("b", "2", None)
    writers.leave("a", "1")
    writers.enter("b", "2", None)


def test_prune_finishes_one_that_was_killed(tmp_path: Path) -> None:
    monitor = CheckpointMonitor(default_local_dir=str(tmp_path))
    for step in (1, 2):
        write_step(tmp_path, step)
    (tmp_path / ".fastsft-trash-global_step_0" / "actor").mkdir(parents=True)
    assert monitor.prune(1) == [1]
    assert [path.name for path in tmp_path.iterdir()] == ["global_step_2"]
