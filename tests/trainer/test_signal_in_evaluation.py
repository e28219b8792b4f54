"""A resumed run first does the evaluation or the end of an epoch that a signal has interrupted."""

import json
import os
import signal

import numpy as np
import pytest

from fake_run import Engine, Model, Rows
from fastsft.arguments import TrainingArguments
from fastsft.callbacks import TrainerCallback
from fastsft.trainer import Trainer
from fastsft.trainer.early_stopping import EarlyStoppingCallback

pytestmark = pytest.mark.usefixtures("fake_saving")

ROWS = Rows(np.arange(10, 21), np.arange(1, 12))
SETS = {"a": ROWS, "b": ROWS}


class Hit(TrainerCallback):
    """Sends signal `number` at the `nth` call of `event`."""

    def __init__(self, event, nth, number):
        self.left = nth
        setattr(self, event, lambda args, state, control, **kwargs: self._hit(number))

    def _hit(self, number):
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), number)


class Falling(Engine):
    """A fake engine whose evaluation loss falls with every step."""

    def loss(self, *args, **options):
        return super().loss(*args, **options) / 2**self.count


def trainer(tmp_path, callbacks=(), eval_dataset=ROWS, **options):
    flags = {
        "output_dir": str(tmp_path), "use_cpu": True, "per_device_train_batch_size": 2, "logging_steps": 1,
        "gradient_accumulation_steps": 2, "num_train_epochs": 2, "save_strategy": "epoch",
        "eval_strategy": "epoch", "metric_for_best_model": "loss", "model_max_length": 32,
        "per_device_eval_batch_size": 2,
        "disable_tqdm": True, "plot_loss": False, "greater_is_better": False, **options,
    }  # fmt: skip
    data = {"train_dataset": ROWS, "eval_dataset": eval_dataset}
    return Trainer(Model(Falling()), args=TrainingArguments(**flags), callbacks=list(callbacks), **data)


def outcome(run):
    state = run.state
    history = [
        {name: value for name, value in entry.items() if not name.endswith(("runtime", "per_second"))}
        for entry in state.log_history
    ]
    return history[:-1], state.best_global_step, state.best_metric, state.global_step, run.engine.count


# 6 batches an evaluation; 3 steps an epoch.
@pytest.mark.parametrize("event", ["on_prediction_step", "on_step_end"])
@pytest.mark.parametrize("epoch", [1, 2])
def test_what_was_left_undone_is_done_first(tmp_path, event, epoch):
    whole = trainer(tmp_path / "whole")
    whole.train()
    nth = 3 * epoch if event == "on_step_end" else 6 * (epoch - 1) + 2
    with pytest.raises(SystemExit):
        trainer(tmp_path / "run", [Hit(event, nth, signal.SIGTERM)]).train()
    run = trainer(tmp_path / "run")
    run.train(resume_from_checkpoint=True)
    assert outcome(run) == outcome(whole)
    saved = json.loads((tmp_path / "run/checkpoint-6/trainer_state.json").read_text())
    assert saved["best_global_step"] == whole.state.best_global_step == 6
    again = trainer(tmp_path / "run")
    again.train(resume_from_checkpoint=True)
    assert outcome(again) == outcome(whole)


@pytest.mark.parametrize("epoch", [1, 2])
@pytest.mark.parametrize("strategy", ["no", "epoch"])
def test_the_mean_loss_of_an_epoch_is_logged_before_a_signal_on_its_last_step_is_answered(
    tmp_path, epoch, strategy
):
    options = {"logging_strategy": "epoch", "eval_strategy": strategy, "save_strategy": strategy}
    whole = trainer(tmp_path / "whole", **options)
    whole.train()
    stopped = trainer(tmp_path / "run", [Hit("on_step_end", 3 * epoch, signal.SIGTERM)], **options)
    with pytest.raises(SystemExit):
        stopped.train()
    losses = [entry for entry in whole.state.log_history if "loss" in entry]
    assert [entry["step"] for entry in losses] == [3, 6]
    assert [entry for entry in stopped.state.log_history if "loss" in entry] == losses[:epoch]
    run = trainer(tmp_path / "run", **options)
    run.train(resume_from_checkpoint=True)
    assert outcome(run) == outcome(whole)


def test_of_several_sets_all_are_evaluated_again(tmp_path):
    options = {"eval_dataset": SETS, "metric_for_best_model": "a_loss"}
    whole = trainer(tmp_path / "whole", **options)
    whole.train()
    with pytest.raises(SystemExit):  # in the second set
        trainer(tmp_path / "run", [Hit("on_prediction_step", 8, signal.SIGTERM)], **options).train()
    run = trainer(tmp_path / "run", **options)
    run.train(resume_from_checkpoint=True)
    assert outcome(run) == outcome(whole)


def test_an_evaluation_that_stops_the_run_stops_the_resumed_one(tmp_path):
    options = {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2}

    def stopping():
        return EarlyStoppingCallback(1, 100.0)

    whole = trainer(tmp_path / "whole", [stopping()], **options)
    whole.train()
    assert whole.state.global_step < 6
    nth = 6 * whole.state.global_step // 2
    with pytest.raises(SystemExit):
        trainer(
            tmp_path / "run", [Hit("on_prediction_step", nth, signal.SIGTERM), stopping()], **options
        ).train()
    run = trainer(tmp_path / "run", [stopping()], restore_callback_states_from_checkpoint=True, **options)
    run.train(resume_from_checkpoint=True)
    assert outcome(run) == outcome(whole)


def test_a_plateau_hears_of_the_evaluation(tmp_path):
    options = {
        "lr_scheduler_type": "reduce_lr_on_plateau", "greater_is_better": False,
        "lr_scheduler_kwargs": {"patience": 0, "threshold": 1e9, "threshold_mode": "abs"},
    }  # fmt: skip
    whole = trainer(tmp_path / "whole", num_train_epochs=3, **options)
    whole.train()
    with pytest.raises(SystemExit):
        hit = Hit("on_prediction_step", 8, signal.SIGTERM)
        trainer(tmp_path / "run", [hit], num_train_epochs=3, **options).train()
    run = trainer(tmp_path / "run", num_train_epochs=3, **options)
    run.train(resume_from_checkpoint=True)
    rates = [step["learning_rate"] for step in run.engine.steps]
    assert rates == [step["learning_rate"] for step in whole.engine.steps][-3:]
    assert rates[0] < whole.engine.steps[3]["learning_rate"]


def test_a_checkpoint_asked_for_in_an_evaluation_is_written_again_with_its_result(tmp_path):
    trainer(tmp_path, [Hit("on_prediction_step", 8, signal.SIGUSR1)]).train()
    saved = json.loads((tmp_path / "checkpoint-6/trainer_state.json").read_text())
    assert saved["best_global_step"] == 6
    assert not json.loads((tmp_path / "checkpoint-6/fastsft_state.json").read_text())["due"]["evaluate"]
