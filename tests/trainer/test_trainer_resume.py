"""The loop resumes, and writes its state. The engine is a small fake."""

import json
import shutil

import pytest

from fake_run import fake_trainer
from fastsft import _C
from fastsft.callbacks.state import TrainerState

pytestmark = pytest.mark.usefixtures("fake_saving")


@pytest.mark.parametrize("stop", [1, 2, 3, 4, 5])
def test_resume_continues_as_if_nothing_happened(tmp_path, stop):
    whole = fake_trainer(tmp_path / "whole")
    whole.train()
    fake_trainer(
        tmp_path / "cut", max_steps=stop, save_strategy="steps", lr_scheduler_type="constant"
    ).train()
    rest = fake_trainer(tmp_path / "cut", save_strategy="steps")
    output = rest.train(resume_from_checkpoint=True)
    assert [s["rows"] for s in rest.engine.steps] == [s["rows"] for s in whole.engine.steps[stop:]]
    assert [s["learning_rate"] for s in rest.engine.steps] == [
        s["learning_rate"] for s in whole.engine.steps[stop:]
    ]
    steps = [entry for entry in rest.state.log_history if "loss" in entry]
    assert [s["step"] for s in steps] == [1, 2, 3, 4, 5, 6] and steps[-1]["epoch"] == 2
    assert rest.state.total_flos == whole.state.total_flos
    assert rest.state.log_history[-1]["train_loss"] == output.training_loss
    assert output.training_loss == pytest.approx(sum(s["loss"] for s in whole.engine.steps) / 6)


def test_a_resumed_state_is_that_of_this_rank(tmp_path):
    fake_trainer(tmp_path, max_steps=2, save_strategy="steps").train()
    path = tmp_path / "checkpoint-2" / "trainer_state.json"
    saved = json.loads(path.read_text())
    others = {"is_world_process_zero": False, "is_local_process_zero": False, "train_batch_size": 7}
    path.write_text(json.dumps(saved | others))
    run = fake_trainer(tmp_path, max_steps=3)
    run.train(resume_from_checkpoint=True)
    assert (run.state.is_world_process_zero, run.state.is_local_process_zero) == (True, True)
    assert run.state.train_batch_size == 2


def test_training_twice_saves_twice(tmp_path):
    run = fake_trainer(tmp_path, max_steps=2, save_strategy="steps")
    run.train()
    shutil.rmtree(tmp_path / "checkpoint-2")
    run.train()
    assert (tmp_path / "checkpoint-2").is_dir()


def test_a_save_that_failed_is_tried_again(tmp_path, monkeypatch, fake_saving):
    run = fake_trainer(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(fake_saving, "save_checkpoint", lambda *_: (_ for _ in ()).throw(RuntimeError("full")))
        with pytest.raises(RuntimeError, match="full"):
            run.save_checkpoint()
    run.save_checkpoint()
    assert (tmp_path / "checkpoint-0").is_dir()


def test_resume_of_a_finished_run_trains_nothing(tmp_path):
    fake_trainer(tmp_path, max_steps=2, save_strategy="steps").train()
    again = fake_trainer(tmp_path, max_steps=2, save_strategy="steps")
    assert again.train(resume_from_checkpoint=True).global_step == 2
    assert again.engine.steps == []


def test_resume_that_starts_its_epoch_again(tmp_path):
    fake_trainer(tmp_path, max_steps=4, save_strategy="steps").train()
    again = fake_trainer(tmp_path, ignore_data_skip=True)
    again.train(resume_from_checkpoint=True)
    assert again.engine.steps[0]["rows"] == _C.epoch_order(11, 42, 1).tolist()[:4]


def test_nothing_to_resume(tmp_path):
    with pytest.raises(ValueError, match="No valid checkpoint found in output directory"):
        fake_trainer(tmp_path).train(resume_from_checkpoint=True)


def test_state_file_is_that_of_transformers(tmp_path, golden):
    fake_trainer(tmp_path, save_strategy="steps", save_steps=3).train()
    ours = json.loads((tmp_path / "checkpoint-3" / "trainer_state.json").read_text())
    theirs = json.loads((golden / "trainer" / "h_resume.json").read_text())["trainer_state"]
    assert set(ours) == set(theirs)
    assert ours["stateful_callbacks"] == theirs["stateful_callbacks"]
    assert (ours["save_steps"], ours["logging_steps"], ours["eval_steps"]) == (3, 1, 500)


def test_transformers_reads_the_state(tmp_path):
    from transformers import TrainerState as Theirs

    run = fake_trainer(tmp_path)
    run.train()
    run.save_state()
    state = Theirs.load_from_json(str(tmp_path / "trainer_state.json"))
    assert (state.global_step, state.max_steps, len(state.log_history)) == (6, 6, 7)


def test_unknown_keys_of_a_state(tmp_path):
    (tmp_path / "s.json").write_text('{"globl_step": 3}')
    with pytest.raises(ValueError, match="globl_step"):
        TrainerState.load_from_json(tmp_path / "s.json")


@pytest.mark.parametrize("stop", [1, 2, 4, 5])
def test_logs_of_several_steps_and_rates_after_a_resume(tmp_path, stop):
    """A run resumes between two logs, within the steps of one log entry."""
    settings = {"logging_steps": 3, "save_strategy": "steps"}
    whole = fake_trainer(tmp_path / "whole", **settings)
    expected = whole.train()
    fake_trainer(tmp_path / "cut", **settings, max_steps=stop, lr_scheduler_type="constant").train()
    rest = fake_trainer(tmp_path / "cut", **settings)
    output = rest.train(resume_from_checkpoint=True)
    losses = [[e["loss"] for e in run.state.log_history if "loss" in e] for run in (rest, whole)]
    assert losses[0] == losses[1] and output.training_loss == expected.training_loss
    rate = output.metrics["train_steps_per_second"] * output.metrics["train_runtime"]
    assert rate == pytest.approx(6 - stop, rel=0.05)


def test_a_checkpoint_without_losses_counts_from_its_step(tmp_path):
    fake_trainer(tmp_path, max_steps=2, save_strategy="steps", lr_scheduler_type="constant").train()
    path = tmp_path / "checkpoint-2" / "fastsft_state.json"
    path.write_text(json.dumps({k: v for k, v in json.loads(path.read_text()).items() if k != "losses"}))
    rest = fake_trainer(tmp_path)
    output = rest.train(resume_from_checkpoint=True)
    assert output.training_loss == pytest.approx(sum(s["loss"] for s in rest.engine.steps) / 4)
