"""What goes wrong around a sync in ways that nobody plans: an error with a name, in time, and no loss."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from fastsft import _C
from fastsft.weight_sync import (
    CheckpointCoordinator,
    CheckpointMonitor,
    Synchronizer,
    WeightReceiver,
    fsdp_save_state_dict,
    fsdp_sync_weight_nccl,
    fsdp_upload_state_dict,
    layout,
    read_state_dict,
    sync_plan,
)
from weight_sync_parts.modules import make_engine, make_model
from weight_sync_parts.receivers import Loaded, in_threads, make_groups
from weight_sync_parts.save_world import LOGGER

LIMIT_S = 30.0


@pytest.fixture
def engine() -> Any:
    return make_engine(make_model(False), "plain")


def save(engine: Any, job: Path, step: int, monitor: CheckpointMonitor | None = None) -> Path:
    """A whole, registered save of a step."""
    actor = job / f"global_step_{step}" / "actor"
    coordinator = CheckpointCoordinator(monitor)
    fsdp_save_state_dict(engine, str(actor), step, coordinator, LOGGER, deadline_s=LIMIT_S)
    coordinator.wait_all(LIMIT_S)
    if monitor is not None:
        monitor.register_thread_count(step, state_dict_thread_count=1)
        monitor.monitor_step(step, True)
    return actor


def named(job: Path) -> int | None:
    return layout.read_iteration(job / layout.STATE_DICT_FILE)


def test_a_receiver_that_is_late_is_waited_for_and_one_that_never_comes_is_not(engine: Any) -> None:
    groups, plan = make_groups(3), sync_plan(engine)
    options: dict[str, Any] = {"mode": "native", "deadline_s": 1.0}
    receivers = [WeightReceiver(group, plan, Loaded(), **options) for group in groups[1:]]

    def late() -> int:
        time.sleep(0.3)
        return receivers[1].receive()

    works = [lambda: fsdp_sync_weight_nccl(engine, groups[0], **options), receivers[0].receive, late]
    assert in_threads(works, LIMIT_S) == [1, 1, 1]
    for outcome in in_threads(works[:2], LIMIT_S):
        assert isinstance(outcome, RuntimeError) and "failed or took more than 1 seconds" in str(outcome)
    assert [receiver.version for receiver in receivers] == [1, 1]


@pytest.mark.parametrize(("version", "message"), [
    (0, "format version 0; this fastsft reads version 1"), (2, "format version 2; this fastsft reads"),
    (None, "not a manifest"),
])  # fmt: skip
def test_a_manifest_of_another_version_is_refused_and_replaced(
    engine: Any, tmp_path: Path, version: int | None, message: str
) -> None:
    actor = save(engine, tmp_path, 1)
    manifest = actor / layout.MANIFEST
    content = json.loads(manifest.read_text())
    content["format_version"] = version
    manifest.write_text(json.dumps(content, indent=2) + "\n")
    with pytest.raises(ValueError, match=message):
        read_state_dict(actor)
    assert CheckpointMonitor(default_local_dir=str(tmp_path)).latest_steps() == (0, 0)
    assert read_state_dict(save(engine, tmp_path, 1), checksums=True)


def test_a_trainer_that_dies_between_manifest_and_iteration_file(engine: Any, tmp_path: Path) -> None:
    save(engine, tmp_path, 1, CheckpointMonitor(default_local_dir=str(tmp_path)))
    save(engine, tmp_path, 2)  # nobody published it
    assert named(tmp_path) == 1
    assert CheckpointMonitor(default_local_dir=str(tmp_path)).latest_steps() == (0, 2)
    assert named(tmp_path) == 2


def test_steps_again_and_backwards_after_a_resume(engine: Any, tmp_path: Path) -> None:
    """Resumed at step 2 after step 4 had been published: steps 3 and 4 are saved anew."""
    for step in (2, 3, 4):
        save(engine, tmp_path, step, CheckpointMonitor(default_local_dir=str(tmp_path)))
    resumed, monitor = (
        make_engine(make_model(False), "plain"),
        CheckpointMonitor(default_local_dir=str(tmp_path)),
    )
    with torch.no_grad():
        resumed.module.head.weight.fill_(7)
    for step in (3, 4):
        actor = save(resumed, tmp_path, step, monitor)
        assert (read_state_dict(actor, checksums=True)["head.weight"] == 7).all()
        assert named(tmp_path) == 4  # never backwards
    save(resumed, tmp_path, 5, monitor)
    assert named(tmp_path) == 5


def test_an_upload_after_a_resume_says_what_to_do(engine: Any) -> None:
    synchronizer = Synchronizer()
    fsdp_upload_state_dict(engine, synchronizer, 100, LOGGER)
    resumed = make_engine(make_model(False), "plain")
    with pytest.raises(ValueError, match=r"version 51 is not newer than 100.*start a new Synchronizer"):
        fsdp_upload_state_dict(resumed, synchronizer, 51, LOGGER)
    fsdp_upload_state_dict(resumed, synchronizer, 101, LOGGER)
    assert synchronizer.get_model_state_dict()[1] == 101


def test_two_trainers_of_one_job_directory(engine: Any, tmp_path: Path) -> None:
    """One after the other: the second's step is whole, and the iteration file never goes back."""
    first, second = (CheckpointMonitor(default_local_dir=str(tmp_path)) for _ in range(2))
    save(engine, tmp_path, 9, first)
    other = make_engine(make_model(False), "plain")
    with torch.no_grad():
        other.module.head.weight.fill_(3)
    actor = save(other, tmp_path, 3, second)
    assert (read_state_dict(actor, checksums=True)["head.weight"] == 3).all()
    assert named(tmp_path) == 9
    assert not layout.problems(tmp_path / "global_step_9" / "actor", checksums=True)


def test_two_trainers_in_one_step_directory_at_once(tmp_path: Path) -> None:
    """Every save is whole or refused by name, and what is left is one of the two throughout."""
    engines = [make_engine(torch.nn.Linear(64, 64), "plain") for _ in range(2)]
    for number, engine in enumerate(engines):
        for parameter in engine.module.parameters():
            torch.nn.init.constant_(parameter, number)
    refused = []

    def trainer(number: int) -> None:
        coordinator = CheckpointCoordinator()
        for _ in range(10):
            fsdp_save_state_dict(engines[number], str(tmp_path), 1, coordinator, LOGGER, deadline_s=LIMIT_S)
            try:
                coordinator.wait_all(LIMIT_S)
            except RuntimeError as error:
                refused.append(str(error))

    assert in_threads([lambda: trainer(0), lambda: trainer(1)], LIMIT_S) == [None, None]
    # The holder may not have said yet who it is.
    assert all("in use by another save (" in message for message in refused), refused
    read = read_state_dict(tmp_path, checksums=True)
    assert len({float(value) for tensor in read.values() for value in tensor.unique()}) == 1
    assert _C.read_manifest(str(tmp_path)).step == 1
