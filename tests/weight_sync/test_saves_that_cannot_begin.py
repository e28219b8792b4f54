"""A save that one rank cannot begin, or that is written where nobody finds it: an error on all ranks."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from fastsft import _C
from fastsft.weight_sync import (
    CheckpointCoordinator,
    Synchronizer,
    fsdp_save_state_dict,
    fsdp_upload_state_dict,
    read_state_dict,
)
from ranks import run_ranks
from weight_sync_parts import begin_world
from weight_sync_parts.modules import make_engine, make_model
from weight_sync_parts.save_world import LOGGER


@pytest.mark.parametrize("kind", ["fsdp1_orig", "fsdp2"])
def test_all_ranks_hear_of_a_rank_that_cannot_begin(kind: str, tmp_path: Path) -> None:
    """FSDP1 gathers to copy: a rank that raised before it left the others in that gather."""
    first, second = run_ranks(2, begin_world.one_rank_cannot_begin, kind, str(tmp_path), seconds=100)
    assert "rank 1 failed" in first[0] and "Not a directory" in first[0]
    assert "Not a directory" in second[0]
    assert all("expected one of hf, native, verl_pt, got 'zip'" in said[2] for said in (first, second))
    assert all("step: rank 0 has 5, " in said[4] for said in (first, second))
    assert [said[1::2] for said in (first, second)] == [["nothing"] * 3] * 2


def test_ranks_that_write_to_disks_of_their_own_are_told(tmp_path: Path) -> None:
    """A manifest of files that rank 0 cannot see would be published, and no reader could take it."""
    for said, named in run_ranks(2, begin_world.own_directories, str(tmp_path)):
        assert all("do all ranks see the same file system" in each for each in said), said
        assert named is None


def test_a_foreign_coordinator_that_refuses_is_heard_on_all_ranks(tmp_path: Path) -> None:
    first, second = run_ranks(2, begin_world.refusing_coordinator, str(tmp_path))
    assert first == ["ConnectionError: the actor is dead", "nothing"]
    assert "rank 0 failed: ConnectionError: the actor is dead" in second[0] and second[1] == "nothing"


@pytest.fixture
def engine() -> Any:
    return make_engine(make_model(False), "plain")


def test_steps_are_whole_numbers_numpys_too(engine: Any, tmp_path: Path) -> None:
    coordinator, synchronizer = CheckpointCoordinator(), Synchronizer()
    fsdp_save_state_dict(engine, str(tmp_path), numpy.int64(3), coordinator, LOGGER)
    coordinator.wait_all(60)
    assert _C.read_manifest(str(tmp_path)).step == 3
    fsdp_upload_state_dict(engine, synchronizer, numpy.int64(3), LOGGER)
    assert type(synchronizer.model_version) is int


@pytest.mark.parametrize("step", [-1, 1.5, "8", None, 1 << 63])
def test_any_other_step_is_refused_before_anything_is_copied(engine: Any, tmp_path: Path, step: Any) -> None:
    message = r"global_step: expected a whole number from 0 on, got "
    with pytest.raises(ValueError, match=message):
        fsdp_save_state_dict(engine, str(tmp_path / "x"), step, CheckpointCoordinator(), LOGGER)
    with pytest.raises(ValueError, match=message):
        fsdp_upload_state_dict(engine, Synchronizer(), step, LOGGER)
    assert not list(tmp_path.iterdir())


class Later:
    """A foreign coordinator whose threads have not begun yet."""

    def __init__(self) -> None:
        self.saves: list[Any] = []

    def save_async(self, name: str, save: Any, step: int, is_state_dict: bool) -> None:
        self.saves.append(save)


def test_an_interrupted_wait_leaves_the_earlier_save_its_copy(
    engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C in a call that waited for the save before it: the next one took that save's buffers."""
    coordinator, weight = Later(), engine.module.head.weight

    def save(step: int) -> None:
        torch.nn.init.constant_(weight, step)
        fsdp_save_state_dict(engine, str(tmp_path / str(step)), step, coordinator, LOGGER, deadline_s=0.2)

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    save(1)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Future, "exception", interrupted)
        save(2)
    with pytest.raises(RuntimeError, match="the save before this one has not ended"):
        save(3)
    for run in coordinator.saves:
        run()
    for step in (1, 3):
        assert (read_state_dict(tmp_path / str(step), checksums=True)["head.weight"] == step).all()


@pytest.mark.parametrize("coordinator", [None, LOGGER])
def test_what_is_no_coordinator_is_refused(engine: Any, tmp_path: Path, coordinator: Any) -> None:
    with pytest.raises(ValueError, match="coordinator: expected a CheckpointCoordinator, or another object"):
        fsdp_save_state_dict(engine, str(tmp_path / "x"), 1, coordinator, LOGGER)
    assert not list(tmp_path.iterdir())


def test_an_empty_path_is_not_the_working_directory(engine: Any) -> None:
    with pytest.raises(ValueError, match="local_path: expected a directory, or None"):
        fsdp_save_state_dict(engine, "", 1, CheckpointCoordinator(), LOGGER)


def test_what_a_save_leaves_verifies_whatever_was_there(engine: Any, tmp_path: Path) -> None:
    coordinator = CheckpointCoordinator()
    (tmp_path / "model.safetensors.index.json").write_text("{}")  # of a model directory cut into files
    fsdp_save_state_dict(engine, str(tmp_path), 1, coordinator, LOGGER)
    coordinator.wait_all(60)
    assert read_state_dict(tmp_path, checksums=True)
    (tmp_path / "mine.safetensors").write_bytes(b"somebody's")
    fsdp_save_state_dict(engine, str(tmp_path), 2, coordinator, LOGGER)
    with pytest.raises(
        RuntimeError, match=r"readers would refuse it: mine\.safetensors: not in the manifest"
    ):
        coordinator.wait_all(60)
    assert not (tmp_path / "manifest.json").exists()
    (tmp_path / "mine.safetensors").unlink()
    fsdp_save_state_dict(engine, str(tmp_path), 3, coordinator, LOGGER)
    coordinator.wait_all(60)
    assert torch.equal(read_state_dict(tmp_path)["head.weight"], engine.module.state_dict()["head.weight"])
