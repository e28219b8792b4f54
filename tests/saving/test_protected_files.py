"""What cannot be removed or replaced costs a line: the run goes on, and ends with its model and its bits."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from fastsft import _C, saving
from fastsft.callbacks.state import TrainOutput
from fastsft.checkpoint import finished_run
from fastsft.checkpoint.content import keep_only
from fastsft.checkpoint.start import archive_checkpoints
from fastsft.model.output_directory import recover_directory
from fastsft.runtime import messages
from fastsft.runtime.output_files import write_output
from fastsft.weight_sync import layout
from plain_user import as_plain_user
from planted import HEX, checkpoint, stage, state
from protections import PROTECTIONS, mounted
from saved_runs import copy
from saving_run import make_trainer

NAMES = ("immutable", "immutable inside", "mounted")


@pytest.fixture(autouse=True)
def says_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines that are said once a process come in every test."""
    monkeypatch.setattr(messages, "_said", set())


@pytest.fixture
def output(tmp_path: Path) -> Path:
    folder = tmp_path / "out"
    folder.mkdir()
    return folder


def run(model: Path, output: Path, **options: Any) -> TrainOutput:
    """To its end, from the newest checkpoint when there is one; then the model and what the end writes."""
    trainer = make_trainer(model, output, **options)
    result = trainer.train(resume_from_checkpoint=saving.newest_checkpoint(output) is not None)
    saving.trainer_save_model_safe(trainer)
    trainer.save_metrics("train", result.metrics)
    trainer.save_state()
    finished_run.record_end(trainer._run, result)
    return result


def run_before(model: Path, output: Path) -> None:
    """A shorter run, whose checkpoints are gone."""
    run(model, output, max_steps=2)
    shutil.rmtree(output / "checkpoint-2")


@pytest.mark.parametrize("protection", NAMES)
def test_a_checkpoint_that_rotation_may_not_remove(
    model: Path, finished: Path, output: Path, protection: str, capsys: Any
) -> None:
    """It keeps its name and what it holds; the others go as ever."""
    copy(finished, output, 2)
    with PROTECTIONS[protection](output / "checkpoint-2"):
        before = state(output / "checkpoint-2")
        run(model, output, save_total_limit=1)
        assert state(output / "checkpoint-2") == before
    assert _C.list_checkpoints(str(output)) == ["checkpoint-2", "checkpoint-6"]
    assert not list(output.glob(".fastsft-t*"))
    same = (output / "model.safetensors").read_bytes()
    assert same == (finished / "checkpoint-6" / "model.safetensors").read_bytes()
    told = capsys.readouterr().out
    assert told.count("checkpoint-2 is not removed") == 1, told
    run(model, output, save_total_limit=1)  # free again: the next start removes it
    assert _C.list_checkpoints(str(output)) == ["checkpoint-6"]


def test_a_checkpoint_without_the_right_to_write(tmp_path: Path, finished: Path) -> None:
    """As `chmod -R a-w` leaves it, for a user without rights."""
    folder = tmp_path / "out"
    copy(finished, folder, 2, 4, 6)
    for each in (folder, *folder.rglob("*")):
        os.chown(each, 65534, 65534)
    for each in (folder / "checkpoint-2", *(folder / "checkpoint-2").rglob("*")):
        each.chmod(0o555 if each.is_dir() else 0o444)
    reach = [each for each in (tmp_path, *tmp_path.parents) if each.stat().st_uid == os.getuid()]
    modes = [each.stat().st_mode for each in reach]
    for each, mode in zip(reach, modes, strict=True):
        each.chmod(mode | 0o055)
    unremoved: list[str] = []

    def rotate() -> None:
        assert list(_C.rotate_checkpoints(str(folder), 1, [], unremoved)) == ["checkpoint-4"]
        assert "checkpoint-2 is not removed" in unremoved[0] and "may not change" in unremoved[0]

    try:
        assert as_plain_user(rotate) == ""
    finally:
        for each, mode in zip(reach, modes, strict=True):
            each.chmod(mode)
    assert _C.list_checkpoints(str(folder)) == ["checkpoint-2", "checkpoint-6"]


@pytest.mark.parametrize("protection", NAMES)
def test_a_leftover_that_may_not_be_removed(model: Path, output: Path, protection: str, capsys: Any) -> None:
    """Of a save and of a removal that a crash broke off."""
    staging, _ = stage(output, {"model.safetensors": b"w"})
    left = output / f".fastsft-tmp-7-{HEX}"
    os.rename(staging.path, left)
    trash = output / f".fastsft-trash-checkpoint-9-{HEX}"
    checkpoint(output, 9).rename(trash)
    with PROTECTIONS[protection](left), PROTECTIONS[protection](trash):
        run(model, output, save_total_limit=1)
        assert left.is_dir() and trash.is_dir()
    assert _C.list_checkpoints(str(output)) == ["checkpoint-6"]
    assert capsys.readouterr().out.count("it stays where it is, and the run goes on") >= 2
    recover_directory(output)
    assert not left.exists() and not trash.exists()


@pytest.mark.parametrize("protection", ["immutable", "mounted"])
@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer_config.json"])
def test_a_model_that_may_not_be_replaced(
    model: Path, finished: Path, output: Path, protection: str, name: str, capsys: Any
) -> None:
    """The new one is whole in a folder of its own; nothing says that the old one is this run's."""
    run_before(model, output)
    before = (output / name).read_bytes()
    with PROTECTIONS[protection](output / name):
        run(model, output)
        assert (output / name).read_bytes() == before
    (kept,) = output.glob("saved-*-model")
    assert str(kept) in capsys.readouterr().out
    expected = (finished / "checkpoint-6" / "model.safetensors").read_bytes()
    assert (kept / "model.safetensors").read_bytes() == expected
    assert _C.verify_directory(str(kept)) == []


OF_THE_RUN = [
    "trainer_state.json", "all_results.json", "train_results.json", "fastsft_finished.json",
    ".fastsft-files.json",
]  # fmt: skip


@pytest.mark.covering
@pytest.mark.parametrize("protection", ["immutable", "mounted"])
@pytest.mark.parametrize("name", OF_THE_RUN)
@pytest.mark.parametrize("whose", ["ours", "another's"])
def test_a_small_file_that_may_not_be_replaced(
    model: Path, finished: Path, output: Path, protection: str, name: str, whose: str
) -> None:
    if whose == "ours":
        run_before(model, output)
    else:
        (output / name).write_text("precious")
    before = (output / name).read_bytes()
    with PROTECTIONS[protection](output / name):
        run(model, output)
        assert (output / name).read_bytes() == before
    expected = (finished / "checkpoint-6" / "model.safetensors").read_bytes()
    assert (output / "model.safetensors").read_bytes() == expected


@pytest.mark.parametrize("protection", ["immutable", "mounted"])
def test_a_damaged_checkpoint_that_may_not_be_replaced(
    model: Path, finished: Path, output: Path, protection: str, capsys: Any
) -> None:
    """The step is trained again, and its checkpoint is left out."""
    copy(finished, output, 2, 4)
    (output / "checkpoint-4" / "model.safetensors").write_bytes(b"torn")
    with PROTECTIONS[protection](output / "checkpoint-4"):
        run(model, output)
        assert (output / "checkpoint-4" / "model.safetensors").read_bytes() == b"torn"
    assert "checkpoint-4 is not saved" in capsys.readouterr().out
    assert _C.verify_directory(str(output / "checkpoint-6")) == []


def test_the_checkpoint_before_that_a_new_one_replaces(output: Path) -> None:
    """Something in it is protected: the new one has the name, and the old one is whole under another."""
    checkpoint(output, 3, {"a": b"old", "b": b"old"})
    with PROTECTIONS["immutable inside"](output / "checkpoint-3"):
        checkpoint(output, 3, {"a": b"new", "b": b"new"})
        (aside,) = output.glob("previous-*-checkpoint-3")
        assert (aside / "a").read_bytes() == b"old" and (aside / "b").read_bytes() == b"old"
        assert (output / "checkpoint-3" / "a").read_bytes() == b"new"


@pytest.mark.parametrize("protection", ["immutable", "mounted"])
def test_checkpoints_that_may_not_be_put_aside(
    finished: Path, output: Path, protection: str, capsys: Any
) -> None:
    copy(finished, output, 2, 4)
    with PROTECTIONS[protection](output / "checkpoint-2"):
        archive_checkpoints(output)
    assert _C.list_checkpoints(str(output)) == ["checkpoint-2"]
    assert len(list(output.glob("previous-*-checkpoint-4"))) == 1
    assert "checkpoint-2" in capsys.readouterr().out


@pytest.mark.parametrize("protection", NAMES)
def test_checkpoints_next_to_the_best_one(finished: Path, output: Path, protection: str) -> None:
    copy(finished, output, 2, 4, 6)
    with PROTECTIONS[protection](output / "checkpoint-2"):
        keep_only(output / "checkpoint-6")
        assert _C.list_checkpoints(str(output)) == ["checkpoint-2", "checkpoint-6"]
        assert _C.verify_directory(str(output / "checkpoint-2")) == []


@pytest.mark.parametrize("protection", NAMES)
def test_steps_of_weight_sync_that_may_not_be_removed(output: Path, protection: str) -> None:
    """`prune` leaves the step under its name, and removes the others."""
    for step in (1, 2, 3):
        part = output / f"global_step_{step}" / "actor"
        part.mkdir(parents=True)
        (part / "model.safetensors").write_bytes(b"w")
        digest = _C.digest_file(str(part / "model.safetensors"))
        _C.replace_file(str(part / layout.MANIFEST), _C.Manifest(step, 1, "hash", [digest]).json())
    with PROTECTIONS[protection](output / "global_step_1"):
        assert layout.prune(output, 1, []) == [2]
        assert layout.problems(output / "global_step_1" / "actor") == []
    assert layout.prune(output, 1, []) == [1]


def test_a_report_that_may_not_be_replaced(output: Path, capsys: Any) -> None:
    (output / "loss.html").write_text("precious")
    with mounted(output / "loss.html"):
        for _ in range(2):
            write_output(output / "loss.html", "new")
        assert (output / "loss.html").read_text() == "precious"
    assert capsys.readouterr().out.count("loss.html is not written") == 1
    write_output(output / "loss.html", "new")
    assert (output / "loss.html").read_text() == "new"
