"""Links, files of others and replaced directories where a run writes: nothing of them is lost."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from fastsft import _C, saving
from fastsft.callbacks import TrainerCallback
from fastsft.checkpoint import finished_run
from fastsft.ranks.output_directory import check_still_held, run_lock
from fastsft.runtime.output_files import check_output_file, replace_file, write_output
from planted import state
from saved_runs import copy
from saving_run import Conversations, make_trainer


@pytest.fixture
def keep(tmp_path: Path) -> Path:
    """Somebody's directory."""
    folder = tmp_path / "keep"
    folder.mkdir()
    (folder / "thesis").write_text("mine")
    return folder


@pytest.fixture
def output(tmp_path: Path) -> Path:
    folder = tmp_path / "out"
    folder.mkdir()
    return folder


def find(folder: Path, content: str) -> list[str]:
    return sorted(
        path.name for path in folder.rglob("*") if path.is_file() and path.read_bytes() == content.encode()
    )


def test_a_link_where_a_checkpoint_belongs(model: Path, keep: Path, output: Path, capsys: Any) -> None:
    (output / "checkpoint-2").symlink_to(keep)
    before = state(keep)
    make_trainer(model, output, max_steps=4, save_total_limit=1).train()
    assert state(keep) == before
    assert _C.list_checkpoints(str(output)) == ["checkpoint-4"]
    (aside,) = output.glob("previous-*-checkpoint-2")
    assert os.readlink(aside) == str(keep)
    assert str(aside) in capsys.readouterr().out


def test_a_checkpoint_behind_a_link_is_resumed_and_never_removed(
    model: Path, finished: Path, tmp_path: Path, output: Path
) -> None:
    disk = copy(finished, tmp_path / "disk", 2, 4)
    (output / "checkpoint-4").symlink_to(disk / "checkpoint-4")
    copy(finished, output, 2)
    assert saving.newest_checkpoint(output) == str(output / "checkpoint-4")
    before = state(disk)
    trainer = make_trainer(model, output, save_total_limit=1)
    assert trainer.train(resume_from_checkpoint=True).global_step == 6
    assert state(disk) == before and (output / "checkpoint-4").is_symlink()
    assert _C.list_checkpoints(str(output)) == ["checkpoint-6"]
    make_trainer(model, output, max_steps=2).train()  # afresh: the link gets another name
    assert state(disk) == before and os.readlink(*output.glob("previous-*-checkpoint-4")) == str(
        disk / "checkpoint-4"
    )


@pytest.mark.parametrize("target", ["missing", "checkpoint-4", "/dev/zero"])
def test_a_link_that_leads_nowhere_is_named(
    finished: Path, output: Path, target: str, caplog: pytest.LogCaptureFixture
) -> None:
    (output / "checkpoint-4").symlink_to(target)
    with pytest.raises(ValueError, match=r"checkpoint-4: a link that leads to no directory"):
        saving.newest_checkpoint(output)
    copy(finished, output, 2)
    assert saving.newest_checkpoint(output) == str(output / "checkpoint-2")
    assert "checkpoint-4 cannot be used: a link that leads to no directory" in caplog.text


@pytest.mark.parametrize("start", ["afresh", "resumed", "no_resume"])
def test_checkpoints_of_another_trainer_stay(
    model: Path, finished: Path, output: Path, start: str, capsys: Any
) -> None:
    for step in (2, 5):
        (output / f"checkpoint-{step}").mkdir()
        (output / f"checkpoint-{step}" / "optimizer.pt").write_text(f"precious {step}")
    if start == "resumed":
        copy(finished, output, 4)
        (output / "checkpoint-6").mkdir()
        (output / "checkpoint-6" / "optimizer.pt").write_text("precious 6")
    if start == "no_resume":
        saving.archive_checkpoints(output)
    make_trainer(model, output, save_total_limit=1).train(
        resume_from_checkpoint=str(output / "checkpoint-4") if start == "resumed" else None
    )
    steps = (2, 5, 6) if start == "resumed" else (2, 5)
    assert all(find(output, f"precious {step}") == ["optimizer.pt"] for step in steps)
    assert (output / "checkpoint-5" / "optimizer.pt").exists()
    assert _C.verify_directory(str(output / "checkpoint-6")) == []
    assert "what fastsft did not write in" in capsys.readouterr().out


OURS = [
    "trainer_state.json", "all_results.json", "train_results.json", "eval_results.json", "config.json",
    "generation_config.json", "training_args.json", "model.safetensors", "model.safetensors.index.json",
    "tokenizer_config.json", "fastsft_finished.json", "loss.html", "loss.png",
]  # fmt: skip


def test_files_of_others_with_our_names(model: Path, output: Path) -> None:
    for name in OURS:
        (output / name).write_text(f"precious {name}")
    trainer = make_trainer(model, output, max_steps=2, plot_loss=True)
    saved = trainer.train()
    saving.trainer_save_model_safe(trainer)
    trainer.save_metrics("train", saved.metrics)
    trainer.save_metrics("eval", {"eval_loss": 1.0})
    trainer.save_state()
    finished_run.record_end(trainer._run, saved)
    for name in OURS:
        (found,) = find(output, f"precious {name}")
        assert found.endswith(name)
    assert json.loads((output / "all_results.json").read_text())["eval_loss"] == 1.0
    before = sorted(output.glob("previous-*"))
    for _ in range(2):
        saving.trainer_save_model_safe(trainer)
        trainer.save_metrics("train", saved.metrics)
        trainer.save_state()
    assert sorted(output.glob("previous-*")) == before  # ours are replaced


def test_files_of_others_in_a_directory_of_ours(model: Path, output: Path, capsys: Any) -> None:
    """Where a run has saved before, a file counts as ours only while it is as we wrote it."""
    pytest.importorskip("matplotlib")
    small = [name for name in OURS if not name.endswith(".safetensors") and "index" not in name]

    def run_and_save() -> None:
        trainer = make_trainer(model, output, max_steps=2, plot_loss=True)
        saved = trainer.train()
        saving.trainer_save_model_safe(trainer)
        trainer.save_metrics("train", saved.metrics)
        trainer.save_metrics("eval", {"eval_loss": 1.0})
        trainer.save_state()
        finished_run.record_end(trainer._run, saved)

    run_and_save()
    run_and_save()
    assert not list(output.glob("previous-*.*")), "what is ours was put aside"
    for name in small:
        (output / name).write_text(f"precious {name}")
    capsys.readouterr()
    run_and_save()
    told = capsys.readouterr().out
    for name in small:
        (found,) = find(output, f"precious {name}")
        assert found.startswith("previous-") and found.endswith(f"-{name}")
        assert (
            f"{output / name}, which is not on record as written by fastsft, is now called {found}" in told
            or (found in told and name in ("all_results.json", "train_results.json", "eval_results.json"))
        )


@pytest.mark.parametrize("kind", ["fifo", "directory", "link", "text", "types", "huge", "nested"])
def test_the_record_of_what_was_written_is_a_strangers(output: Path, keep: Path, kind: str) -> None:
    record = output / ".fastsft-files.json"
    texts = {"text": "not json", "types": '{"x": [["a", {}]], "y": 7}', "nested": "[" * 100_000}
    if kind == "fifo":
        os.mkfifo(record)
    elif kind == "directory":
        record.mkdir()
        (record / "mine").write_text("precious")
    elif kind == "link":
        record.symlink_to(keep / "thesis")
    elif kind == "huge":
        record.touch()
        os.truncate(record, 1 << 40)
    else:
        record.write_text(texts[kind])
    (output / "x").write_text("precious x")
    write_output(output / "x", "new")
    write_output(output / "x", "newer")
    assert (output / "x").read_text() == "newer" and (keep / "thesis").read_text() == "mine"
    assert len(find(output, "precious x")) == 1
    assert record.is_file() and not record.is_symlink()
    assert kind != "directory" or len(find(output, "precious")) == 1


@pytest.mark.parametrize("kind", ["link", "fifo", "directory"])
def test_no_write_goes_through_what_has_our_names(model: Path, keep: Path, output: Path, kind: str) -> None:
    for name in OURS:
        if kind == "link":
            (output / name).symlink_to(keep / "thesis")
        elif kind == "fifo":
            os.mkfifo(output / name)
        else:
            (output / name).mkdir()
    before = state(keep)
    trainer = make_trainer(model, output, max_steps=2, plot_loss=True)
    saved = trainer.train()
    saving.trainer_save_model_safe(trainer)
    trainer.save_metrics("train", saved.metrics)
    trainer.save_state()
    finished_run.record_end(trainer._run, saved)
    assert state(keep) == before
    for name in ("trainer_state.json", "all_results.json", "config.json", "fastsft_finished.json"):
        assert not (output / name).is_symlink() and isinstance(json.loads((output / name).read_text()), dict)


@pytest.mark.parametrize("text", ["", "{", "[1]", "[" * 100_000, "null"])
def test_a_broken_results_file_is_kept_aside(model: Path, output: Path, text: str, capsys: Any) -> None:
    trainer = make_trainer(model, output)
    (output / "all_results.json").write_text(text)
    trainer.save_metrics("train", {"train_loss": 1.0})
    assert json.loads((output / "all_results.json").read_text()) == {"train_loss": 1.0}
    (aside,) = output.glob("previous-*-all_results.json")
    assert aside.read_text() == text and aside.name in capsys.readouterr().out


def test_the_source_of_a_run_is_not_renamed(model: Path, finished: Path, output: Path) -> None:
    copy(finished, output, 2, 4)
    source = output / "checkpoint-4"
    before = state(output)
    for go in (
        lambda: saving.archive_checkpoints(output, source),
        lambda: saving.archive_abandoned(output, None, source),
        lambda: saving.archive_abandoned(output, output / "checkpoint-2", source),
        lambda: make_trainer(source, output).train(),
    ):
        with pytest.raises(ValueError, match=r"the model that the run begins with is in .*copy or rename it"):
            go()
        shutil.rmtree(output / "__nothing__", ignore_errors=True)
        assert {name for name in state(output) if "checkpoint" in name} == {
            name for name in before if "checkpoint" in name
        }
    saving.archive_abandoned(output, source, source)


def test_the_source_of_a_run_is_not_rotated_away(model: Path, finished: Path, output: Path) -> None:
    copy(finished, output, 2)
    trainer = make_trainer(output / "checkpoint-2", output, save_total_limit=1)
    assert trainer.train(resume_from_checkpoint=True).global_step == 6
    assert _C.list_checkpoints(str(output)) == ["checkpoint-2", "checkpoint-6"]


def replace_directory(output: Path) -> None:
    shutil.rmtree(output)
    output.mkdir()
    (output / "theirs").write_text("another run")


def test_a_run_whose_directory_is_another_one_by_now(model: Path, output: Path) -> None:
    trainer = make_trainer(model, output)
    with run_lock(output):
        replace_directory(output)
        second = _C.RunLock(str(output))
        for save in (
            lambda: saving.save_checkpoint(trainer, output / "checkpoint-2"),
            lambda: saving.trainer_save_model_safe(trainer),
        ):
            with pytest.raises(RuntimeError, match="is no longer the directory that this run holds"):
                save()
    assert sorted(path.name for path in output.iterdir()) == [".fastsft-lock", "theirs"]
    with pytest.raises(ValueError, match="in use by another run"):
        _C.RunLock(str(output))
    second.release()


def test_a_run_whose_directory_was_removed_makes_it_again(model: Path, output: Path, capsys: Any) -> None:
    trainer = make_trainer(model, output)
    with run_lock(output):
        shutil.rmtree(output)
        saving.save_checkpoint(trainer, output / "checkpoint-2")
        assert _C.list_checkpoints(str(output)) == ["checkpoint-2"]
        with pytest.raises(ValueError, match="in use"):
            _C.RunLock(str(output))
        (output / ".fastsft-lock").unlink()
        check_still_held(output)
        with pytest.raises(ValueError, match="in use"):
            _C.RunLock(str(output))
    assert "is made again" in capsys.readouterr().out


def test_a_file_in_the_place_of_the_directory(model: Path, output: Path) -> None:
    trainer = make_trainer(model, output)
    with run_lock(output):
        shutil.rmtree(output)
        output.write_text("mine")
        with pytest.raises(RuntimeError, match="is no longer the directory"):
            saving.save_checkpoint(trainer, output / "checkpoint-2")
    assert output.read_text() == "mine"


class Replacing(TrainerCallback):
    """Somebody who puts a link in the place of the checkpoint of step 2, while the run goes on."""

    def __init__(self, output: Path, target: Path) -> None:
        self._output, self._target = output, target

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        path = self._output / "checkpoint-2"
        if state.global_step == 3:  # saves are finished at the end of their step
            path.rename(self._output / "moved")
            path.symlink_to(self._target)


@pytest.mark.parametrize("target", ["a folder", "its own", "nothing"])
def test_a_checkpoint_that_is_a_link_since(model: Path, keep: Path, output: Path, target: str) -> None:
    """Neither rotation nor a later save removes or writes what is behind it."""
    places = {"a folder": keep, "its own": output / "moved", "nothing": output / "gone"}
    trainer = make_trainer(model, output, save_total_limit=1, async_save=False)
    trainer.add_callback(Replacing(output, places[target]))
    trainer.train()
    assert [path.name for path in keep.iterdir()] == ["thesis"] and (keep / "thesis").read_text() == "mine"
    assert _C.verify_directory(str(output / "moved")) == []
    assert _C.verify_directory(str(output / "checkpoint-6")) == []


def test_hard_links_to_what_is_replaced_keep_their_content(model: Path, finished: Path, output: Path) -> None:
    """As of a backup by `cp -al`."""
    copy(finished, output, 2, 4)
    trainer = make_trainer(model, output)
    saving.trainer_save_model_safe(trainer)
    trainer.save_state()
    backup = output.with_name("backup")
    shutil.copytree(output, backup, copy_function=os.link)
    before = state(backup)
    trainer = make_trainer(model, output, save_total_limit=1)
    saved = trainer.train(resume_from_checkpoint=str(output / "checkpoint-2"))
    saving.trainer_save_model_safe(trainer)
    trainer.save_metrics("train", saved.metrics)
    trainer.save_state()
    after = state(backup)
    assert {name: found for name, found in after.items() if name != "."} == {
        name: found for name, found in before.items() if name != "."
    }


def test_files_are_written_whole_and_through_no_link(keep: Path, output: Path) -> None:
    link = output / "x"
    link.symlink_to(keep / "thesis")
    for content in ("new", b"newer", memoryview(b"newest")):
        replace_file(link, content)
    assert link.read_text() == "newest" and (keep / "thesis").read_text() == "mine"
    assert [path.name for path in output.iterdir()] == ["x"]
    write_output(output / "y", "1")
    write_output(output / "y", "2")
    assert sorted(path.name for path in output.iterdir()) == [".fastsft-files.json", "x", "y"]


@pytest.mark.parametrize("kind", ["fifo", "directory", "/dev/null", "link to /dev/null"])
def test_no_flag_names_what_is_no_file(output: Path, kind: str) -> None:
    path = output / "bad.jsonl"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        path.symlink_to("/dev/null")
    given = "/dev/null" if kind == "/dev/null" else path
    before = os.lstat(given)
    with pytest.raises(
        ValueError, match=r"--report_bad: .*expected the name of a file, got a .*left as it is"
    ):
        check_output_file(given, "--report_bad")
    assert os.lstat(given).st_ino == before.st_ino


def test_paths_stay_where_the_trainer_was_made(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """os.chdir between making and training, and while it trains."""
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    monkeypatch.chdir(here)
    shutil.copytree(model, "model")
    trainer = make_trainer(Path("model"), Path("out"), max_steps=4)

    class Moves:
        def on_step_end(self, *_: Any, **__: Any) -> None:
            os.chdir(tmp_path)

    trainer.add_callback(Moves())
    os.chdir(there)
    saved = trainer.train()
    saving.trainer_save_model_safe(trainer)
    trainer.save_metrics("train", saved.metrics)
    trainer.save_state()
    assert not list(there.iterdir()) and not (tmp_path / "out").exists()
    names = {path.name for path in (here / "out").iterdir()}
    assert names >= {
        "checkpoint-2",
        "checkpoint-4",
        "model.safetensors",
        "trainer_state.json",
        "all_results.json",
    }


RECORDS = {
    "no object": "[]",
    "only version": '{"format_version": 1}',
    "deep": "[" * 100_000,
    "surrogate": '{"format_version": 1, "step": "\\ud800"}',
    "huge": '{"format_version": 1, "step": 1e400}',
}


WRONG: list[dict[str, Any]] = [
    {"step": None}, {"step": "2"}, {"files": []}, {"files": {"config.json": "x"}}, {"metrics": None},
    {"metrics": {"a": []}}, {"request": None}, {"request": {}}, {"training_loss": "x"},
]  # fmt: skip


@pytest.mark.parametrize("kind", [*RECORDS, "fifo", "/dev/zero", "directory", *range(len(WRONG))])
def test_a_hostile_record_of_the_end_counts_as_none(
    model: Path, output: Path, kind: str | int, capsys: Any
) -> None:
    trainer = make_trainer(model, output, max_steps=2)
    saved = trainer.train()
    saving.trainer_save_model_safe(trainer)
    finished_run.record_end(trainer._run, saved)
    path = output / finished_run.RECORD_NAME
    given = (trainer.model, trainer.args, trainer.tokenizer, trainer.train_dataset)
    assert finished_run.finished_output(finished_run.AskedRun(*given)) is not None
    record = json.loads(path.read_text())
    path.unlink()
    if isinstance(kind, int):
        path.write_text(json.dumps({**record, **WRONG[kind]}))
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "/dev/zero":
        path.symlink_to(kind)
    else:
        path.write_text(RECORDS[kind])
    capsys.readouterr()
    assert finished_run.finished_output(finished_run.AskedRun(*given)) is None
    assert "counts as not finished" in capsys.readouterr().out
    finished_run.forget_end(output)
    finished_run.record_end(trainer._run, saved)
    assert finished_run.finished_output(finished_run.AskedRun(*given)) is not None


def test_a_run_without_its_tokenizer_is_not_finished(model: Path, output: Path) -> None:
    trainer = make_trainer(model, output, max_steps=2)
    saved = trainer.train()
    saving.trainer_save_model_safe(trainer)
    finished_run.record_end(trainer._run, saved)
    given = (trainer.model, trainer.args, trainer.tokenizer, trainer.train_dataset)
    for name in ("tokenizer_config.json", "generation_config.json", "config.json", "model.safetensors"):
        (output / name).rename(output / "away")
        assert finished_run.finished_output(finished_run.AskedRun(*given)) is None, name
        (output / "away").rename(output / name)
        assert finished_run.finished_output(finished_run.AskedRun(*given)) is not None, name


def test_a_run_that_stopped_early_is_finished_for_its_evaluation_data_alone(
    model: Path, output: Path
) -> None:
    stops = {"early_stopping_patience": 1, "eval_strategy": "steps", "eval_steps": 1}
    trainer = make_trainer(model, output, max_steps=2, **stops, eval_dataset=Conversations())
    saved = trainer.train()
    saving.trainer_save_model_safe(trainer)
    finished_run.record_end(trainer._run, saved)
    given = (trainer.model, trainer.args, trainer.tokenizer, trainer.train_dataset)
    assert finished_run.finished_output(finished_run.AskedRun(*given, Conversations())) is not None
    other = Conversations()
    other.native.append(other.native.ids(0), other.native.learned(0))
    for evaluated in (other, object(), None):
        assert finished_run.finished_output(finished_run.AskedRun(*given, evaluated)) is None
    for name, value in {"eval_delay": 1, "eval_on_start": True, "per_device_eval_batch_size": 1}.items():
        before = getattr(trainer.args, name)
        setattr(trainer.args, name, value)
        assert finished_run.finished_output(finished_run.AskedRun(*given, Conversations())) is None, name
        setattr(trainer.args, name, before)
