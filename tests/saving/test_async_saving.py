"""Saves behind the training: true copies, failures told at the next step, one at a time."""

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from fastsft import _C, saving
from fastsft.checkpoint import saver as checkpoint_saver
from fastsft.ranks.output_directory import DirectoryView, choose_save_mode
from fastsft.runtime.output_files import RECORD_NAME
from saving_run import make_trainer
from tiny_models import train, write_model

OPTIMIZER = "optimizer-rank-00000-of-00001.safetensors"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model"), "untied")


def contents(folder, *, without=("manifest.json", "training_args.json")):
    without = {*without, RECORD_NAME}
    return {path.name: path.read_bytes() for path in Path(folder).iterdir() if path.name not in without}


class Held:
    """A part whose writing waits until it is let go, or fails."""

    def __init__(self, part, error=None):
        self.part, self.error, self.go, self.begun = part, error, threading.Event(), threading.Event()

    def write(self, directory, **options):
        self.begun.set()
        assert self.go.wait(60)
        if self.error is not None:
            raise self.error
        return self.part.write(directory, **options)


def held_saver(trainer, monkeypatch, error=None):
    """A saver whose saves wait; and the list of what they wait for."""
    saver, held = saving.CheckpointSaver(trainer), []
    stage = saver._stage

    def stage_and_hold():
        held.append(Held(stage(), error))
        return held[-1]

    monkeypatch.setattr(saver, "_stage", stage_and_hold)
    return saver, held


@pytest.mark.parametrize("compute", [{}, {"bf16": True, "master_dtype": "split", "optim_dtype": "bfloat16"}])
def test_the_same_bytes_as_a_synchronous_save(model, tmp_path, compute):
    trainer = make_trainer(model, tmp_path, max_shard_size="10KB", **compute)
    train(trainer.engine, 2)
    for behind in (True, False):
        trainer.args.async_save = behind
        saving.save_checkpoint(trainer, tmp_path / str(behind) / "checkpoint-2")
    behind, waited = (contents(tmp_path / name / "checkpoint-2") for name in ("True", "False"))
    assert behind == waited and OPTIMIZER in behind and len(behind) > 10
    assert _C.verify_directory(str(tmp_path / "True" / "checkpoint-2")) == []


def test_training_goes_on_and_the_copy_stays(model, tmp_path, monkeypatch):
    trainer = make_trainer(model, tmp_path)
    train(trainer.engine, 1)
    saver, held = held_saver(trainer, monkeypatch)
    saving.save_checkpoint(trainer, tmp_path / "frozen" / "checkpoint-0")
    saver.save(tmp_path / "checkpoint-0")
    assert held[0].begun.wait(60)
    train(trainer.engine, 3)
    saver.poll()
    assert not (tmp_path / "checkpoint-0").exists()
    held[0].go.set()
    saver.wait()
    saved, frozen = contents(tmp_path / "checkpoint-0"), contents(tmp_path / "frozen" / "checkpoint-0")
    assert saved == frozen
    saving.save_checkpoint(trainer, tmp_path / "later" / "checkpoint-0")
    later = contents(tmp_path / "later" / "checkpoint-0")
    assert later[OPTIMIZER] != saved[OPTIMIZER] and later["model.safetensors"] != saved["model.safetensors"]


@pytest.mark.parametrize("policy", ["stop", "continue"])
def test_a_failure_is_told_at_the_next_step(model, tmp_path, monkeypatch, capsys, policy):
    trainer = make_trainer(model, tmp_path, on_save_error=policy)
    saving.save_checkpoint(trainer, tmp_path / "checkpoint-1")
    saver, held = held_saver(trainer, monkeypatch, RuntimeError("the disk is gone"))
    saver.save(tmp_path / "checkpoint-2")
    assert saver.has(tmp_path / "checkpoint-2")
    held[0].go.set()
    saver._save.join()
    if policy == "stop":
        with pytest.raises(RuntimeError, match="the disk is gone"):
            saver.poll()
    else:
        saver.poll()
        assert "the disk is gone; training goes on without this checkpoint" in capsys.readouterr().out
    assert not saver.has(tmp_path / "checkpoint-2")
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-1"]
    assert saving.newest_checkpoint(tmp_path) == str(tmp_path / "checkpoint-1")
    monkeypatch.undo()
    saver.save(tmp_path / "checkpoint-2")
    saver.wait()
    assert saving.newest_checkpoint(tmp_path) == str(tmp_path / "checkpoint-2")


def test_a_second_save_waits_for_the_first_and_says_so(model, tmp_path, monkeypatch, capsys):
    trainer = make_trainer(model, tmp_path)
    saver, held = held_saver(trainer, monkeypatch)
    monkeypatch.setattr(checkpoint_saver, "_WORTH_SAYING", 0.0)
    saver.save(tmp_path / "checkpoint-1")
    threading.Timer(0.2, held[0].go.set).start()
    saver.save(tmp_path / "checkpoint-2")
    assert "checkpoint-2: waited" in capsys.readouterr().out
    assert (tmp_path / "checkpoint-1").is_dir() and not (tmp_path / "checkpoint-2").exists()
    held[1].go.set()
    saver.wait()
    saver.poll()
    assert _C.list_checkpoints(str(tmp_path)) == ["checkpoint-1", "checkpoint-2"]
    assert all(_C.verify_directory(str(tmp_path / f"checkpoint-{step}")) == [] for step in (1, 2))


@pytest.mark.parametrize("other", ["model", "checkpoint"])
def test_another_save_does_not_sweep_away_the_one_in_flight(model, tmp_path, monkeypatch, other):
    trainer = make_trainer(model, tmp_path)
    trainer._run.checkpoints.saver, held = held_saver(trainer, monkeypatch)
    trainer._run.checkpoints.saver.save(tmp_path / "checkpoint-1")
    threading.Timer(0.2, held[0].go.set).start()
    if other == "model":
        trainer.save_model()
        assert (tmp_path / "model.safetensors").exists()
    else:
        saving.save_checkpoint(trainer, tmp_path / "checkpoint-2")
    trainer._run.checkpoints.saver.wait()
    assert _C.verify_directory(str(tmp_path / "checkpoint-1")) == []


def test_any_error_of_a_save_is_answered_by_the_policy(model, tmp_path, monkeypatch, capsys):
    trainer = make_trainer(model, tmp_path, on_save_error="continue")

    def broken(trainer):
        raise TypeError("the tokenizer is no JSON")

    monkeypatch.setattr("fastsft.checkpoint.content.CheckpointContent.of", broken)
    saver = saving.CheckpointSaver(trainer)
    saver.save(tmp_path / "checkpoint-1")
    assert "the tokenizer is no JSON; training goes on" in capsys.readouterr().out
    assert not saver.has(tmp_path / "checkpoint-1") and not list(tmp_path.iterdir())


_SLOW = """
import sys, time
from fastsft import _C
_C.enter_phase("save", timeout_seconds=0.5)
for number in range(12 if sys.argv[2] == "writes" else 1):
    time.sleep(0.1 if sys.argv[2] == "writes" else 1.5)
    _C.write_file(f"{sys.argv[1]}/{number}", "x")
_C.enter_phase("none", timeout_seconds=0)
"""


@pytest.mark.variants("hangs")
@pytest.mark.parametrize(("does", "status"), [("writes", 0), ("hangs", 3)])
def test_a_slow_disk_is_no_standstill(tmp_path, does, status):
    command = [sys.executable, "-c", _SLOW, str(tmp_path), does]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == status, done.stderr


def test_after_an_error_the_save_in_flight_is_finished(model, tmp_path, monkeypatch):
    trainer = make_trainer(model, tmp_path)
    saver, held = held_saver(trainer, monkeypatch)
    saver.save(tmp_path / "checkpoint-1")
    threading.Timer(0.1, held[0].go.set).start()
    saver.abandon(RuntimeError("the step failed"))
    assert _C.verify_directory(str(tmp_path / "checkpoint-1")) == []


def test_a_second_interrupt_waits_for_nothing(model, tmp_path, monkeypatch):
    trainer = make_trainer(model, tmp_path)
    saver, held = held_saver(trainer, monkeypatch)
    saver.save(tmp_path / "checkpoint-1")
    running = saver._save
    saver.abandon(KeyboardInterrupt())
    assert not (tmp_path / "checkpoint-1").exists()
    held[0].go.set()
    running.join()


def test_a_run_with_a_stopped_disk_stops(model, tmp_path, monkeypatch):
    """The whole loop: the save of step 2 fails, the run ends at a later step and says why."""
    trainer = make_trainer(model, tmp_path)

    def broken(self, directory):
        raise RuntimeError("the tokenizer cannot be written")

    monkeypatch.setattr("fastsft.checkpoint.content.CheckpointContent.write_run_files", broken)
    with pytest.raises(RuntimeError, match="the tokenizer cannot be written"):
        trainer.train()
    assert _C.list_checkpoints(str(tmp_path)) == []
    assert not list(tmp_path.glob(".fastsft-tmp*"))


def test_little_host_memory_is_said_once(model, tmp_path, monkeypatch, capsys):
    trainer = make_trainer(model, tmp_path)
    monkeypatch.setattr(checkpoint_saver, "available_host_memory", lambda: 1000)
    saver = saving.CheckpointSaver(trainer)
    for step in (1, 2):
        saver.save(tmp_path / f"checkpoint-{step}")
        assert (tmp_path / f"checkpoint-{step}").is_dir()  # it waited
    assert capsys.readouterr().out.count("checkpoints are written while training waits: a copy takes") == 1


@pytest.mark.parametrize("compute", [{}, {"bf16": True, "optim_dtype": "bfloat16"}])
def test_the_plan_knows_the_copy(model, tmp_path, compute):
    trainer = make_trainer(model, tmp_path, **compute)
    needs = _C.CheckpointStaging(trainer.engine).nbytes
    assert sum(trainer.engine.unit_sizes) * (8 if compute else 12) == needs
    assert needs <= trainer._run.planner.memory_plan.staging <= 1.2 * needs  # units are padded


def test_only_the_model(model, tmp_path):
    trainer = make_trainer(model, tmp_path, save_only_model=True, save_total_limit=1)
    trainer.train()
    names = {path.name for path in (tmp_path / "checkpoint-6").iterdir()}
    assert names == {
        "config.json", "generation_config.json", "model.safetensors", "tokenizer_config.json",
        "training_args.json", "trainer_state.json", "fastsft_state.json", "manifest.json",
    }  # fmt: skip
    with pytest.raises(ValueError, match="it holds a model without optimizer state"):
        saving.newest_checkpoint(tmp_path)


@pytest.mark.parametrize("options", [{"save_mode": "stream"}, {"save_on_each_node": True}])
def test_the_other_ways_write_the_same(model, tmp_path, options):
    results = []
    for number, flags in enumerate([{}, options]):
        trainer = make_trainer(model, tmp_path / str(number), max_shard_size="10KB", **flags)
        train(trainer.engine, 2)
        saving.save_checkpoint(trainer, tmp_path / str(number) / "checkpoint-2")
        saving.save_model_directory(trainer, tmp_path / str(number) / "final")
        assert _C.verify_directory(str(tmp_path / str(number) / "checkpoint-2")) == []
        ignored = ("manifest.json", "training_args.json", "random-state-rank-00000.json")
        results.append([contents(tmp_path / str(number) / name, without=ignored)
                        for name in ("checkpoint-2", "final")])  # fmt: skip
    assert results[0] == results[1]
    fresh = make_trainer(model, tmp_path / "1", **options)
    assert saving.load_checkpoint(fresh, tmp_path / "1" / "checkpoint-2")["world_size"] == 1


def test_a_damaged_final_file_is_a_failed_save(model, tmp_path, monkeypatch):
    trainer = make_trainer(model, tmp_path)
    saving.save_model_directory(trainer, tmp_path)
    before = contents(tmp_path)
    write = _C.write_part

    def write_and_damage(engine, path, **options):
        result = write(engine, path, **options)
        file = Path(path) / "model.safetensors"
        content = bytearray(file.read_bytes())
        content[-5] ^= 1
        file.write_bytes(content)
        return result

    monkeypatch.setattr(_C, "write_part", write_and_damage)
    with pytest.raises(
        RuntimeError, match=r"lm_head\.weight reads back differently from the weights in memory"
    ):
        saving.save_model_directory(trainer, tmp_path)
    assert contents(tmp_path) == before


@pytest.mark.parametrize("torn", range(3))
def test_torn_checkpoints_are_not_counted(model, tmp_path, torn):
    """The two newest complete ones stay, and the torn ones are not taken for them."""
    trainer = make_trainer(model, tmp_path, save_total_limit=2)
    for step in (90, 91, 92)[: torn + 1]:
        saving.save_checkpoint(trainer, tmp_path / f"checkpoint-{step}")
        (tmp_path / f"checkpoint-{step}" / ("manifest.json", OPTIMIZER, "config.json")[torn]).unlink()
    trainer.train()
    left = [name for name in _C.list_checkpoints(str(tmp_path)) if int(name.split("-")[1]) < 90]
    assert left == ["checkpoint-4", "checkpoint-6"]
    assert saving.newest_checkpoint(tmp_path) == str(tmp_path / "checkpoint-6")


SEEN = DirectoryView(True, "a", "ext4")


@pytest.mark.parametrize(
    ("wanted", "sights", "way"),
    [
        ("auto", [SEEN, SEEN], "parallel"),
        ("auto", [SEEN, DirectoryView(True, "b", "lustre")], "parallel"),
        ("auto", [DirectoryView(True, "a", "nfs4"), DirectoryView(True, "b", "nfs4")], "mixed"),
        ("auto", [DirectoryView(True, "a", "nfs4"), DirectoryView(True, "a", "nfs4")], "parallel"),
        ("auto", [SEEN, DirectoryView(False, "b", "ext4")], "stream"),
        ("stream", [SEEN, SEEN], "mixed"),
        ("stream", [SEEN, DirectoryView(False, "b", "ext4")], "stream"),
        ("parallel", [DirectoryView(True, "a", "nfs4"), DirectoryView(True, "b", "nfs4")], "parallel"),
    ],
)
def test_which_way_is_chosen(wanted, sights, way):
    chosen, why = choose_save_mode(wanted, sights)
    assert chosen == way and bool(why) == ((wanted == "auto" and way != "parallel") or way == "stream")


def test_parallel_needs_a_common_directory():
    with pytest.raises(ValueError, match="rank 1 does not see the directory that rank 0 made"):
        choose_save_mode("parallel", [SEEN, DirectoryView(False, "b", "ext4")])


def test_training_args_name_the_way(model, tmp_path):
    saving.save_model_directory(make_trainer(model, tmp_path, save_mode="parallel"), tmp_path)
    assert json.loads((tmp_path / "training_args.json").read_text())["save_mode"] == "parallel"
