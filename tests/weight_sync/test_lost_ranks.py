"""A trainer rank that dies, is late or has no room: an error on the others in time, and nothing half."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from fastsft.weight_sync import layout, read_state_dict
from ranks import run_ranks
from weight_sync_parts import fault_world
from weight_sync_parts.save_world import FORMATS


def kill_and_save_again(job: Path, save_format: str, share: float) -> None:
    job.mkdir()
    with pytest.raises(RuntimeError, match=r"rank 1 ended with status -9"):
        run_ranks(2, fault_world.killed_mid_save, str(job), save_format, share)
    assert "rank 1 did not report within 1 seconds" in (job / "heard").read_text()
    actor = job / "global_step_1" / "actor"
    # The dead rank's own file may have come after rank 0 had tidied up.
    assert all(path.name.startswith(".fastsft-tmp-") for path in actor.iterdir())
    assert layout.read_iteration(job / layout.STATE_DICT_FILE) is None
    (actor / ".fastsft-tmp-model.safetensors-0123456789abcdef").write_bytes(b"of ranks that all died")
    states = run_ranks(2, fault_world.whole_save, str(job), save_format)
    read = read_state_dict(actor, checksums=True)
    assert read.keys() == states[0].keys()
    assert all(torch.equal(read[name], tensor) for name, tensor in states[0].items())
    assert not list(actor.glob(".fastsft-tmp-*"))


def test_a_rank_killed_while_it_writes(tmp_path: Path) -> None:
    kill_and_save_again(tmp_path / "job", "native", 0.5)


@pytest.mark.chaos
def test_ranks_killed_while_they_write(tmp_path: Path) -> None:
    generator = random.Random(1)
    for turn in range(12):
        kill_and_save_again(tmp_path / str(turn), FORMATS[turn % 3], generator.random())


def test_a_rank_without_room_fails_the_save_and_leaves_nothing(tmp_path: Path) -> None:
    """RLIMIT_FSIZE stops a writer as a full disk does, in the middle of a file."""
    for rank in run_ranks(2, fault_world.full_disk, str(tmp_path)):
        for name, (heard, left, again) in zip(FORMATS, rank, strict=True):
            assert "saving step 1 to" in heard and "rank 1 failed" in heard, (name, heard)
            assert (left, again) == ([], "saved"), name


def check_delay(folder: Path, seconds: float) -> None:
    first, second = run_ranks(2, fault_world.delayed, str(folder), seconds, seconds=4 * seconds + 120)
    for rank in (first, second):
        assert rank["save 1"] == "saved" and rank["late 1"]
        assert not rank["early 2"] and not rank["late 2"]
    assert not first["early 1"]  # rank 0 had written its part, and waited
    assert f"rank 1 did not report within {seconds / 4:g} seconds" in first["save 2"]
    assert "did not report within" in second["save 2"] or "rank 1 did not report" in second["save 2"]
    assert first["sync"] == [1, 1, 1] and second["sync"] == 1
    assert layout.read_iteration(folder / layout.STATE_DICT_FILE) is None  # nobody registered the steps


def test_a_rank_that_is_two_seconds_late(tmp_path: Path) -> None:
    check_delay(tmp_path, 2.0)


@pytest.mark.chaos
def test_a_rank_that_is_thirty_seconds_late(tmp_path: Path) -> None:
    check_delay(tmp_path, 30.0)
