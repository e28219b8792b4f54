"""The loop around a step: logs, evaluation, saves, events. The engine is a small fake."""

import json
import math
import subprocess
import sys

import numpy as np
import pytest

from fake_run import ROWS, Engine, Rows, fake_trainer
from fastsft import _C
from fastsft.callbacks import TrainerCallback

pytestmark = pytest.mark.usefixtures("fake_saving")


def test_steps_rows_and_rates(tmp_path):
    run = fake_trainer(
        tmp_path, weight_decay=0.1, max_grad_norm=0.5, adam_beta2=0.95, label_smoothing_factor=0.2
    )
    run.train()
    # 11 rows in batches of 2: 6 micro-batches, 3 groups an epoch, two epochs.
    seen = [step["rows"] for step in run.engine.steps]
    orders = [_C.epoch_order(11, 42, epoch).tolist() for epoch in (0, 1)]
    assert [sorted(rows) for rows in seen] == [
        sorted(order[a : a + 4]) for order in orders for a in (0, 4, 8)
    ]
    schedule = _C.Schedule("linear", learning_rate=1e-3, warmup_steps=0, total_steps=6)
    for number, step in enumerate(run.engine.steps):
        assert step["learning_rate"] == schedule.rate(number)
        assert (step["weight_decay"], step["max_grad_norm"], step["label_smoothing"]) == (0.1, 0.5, 0.2)
        assert (step["beta1"], step["beta2"], step["eps"]) == (0.9, 0.95, 1e-8)
    assert run.engine.reserved == tuple(
        run._run.planner.memory_plan.work.shapes().values()
    )  # before the first step


def test_log_history(tmp_path, capsys):
    run = fake_trainer(tmp_path)
    output = run.train()
    *steps, last = run.state.log_history
    for number, (entry, step) in enumerate(zip(steps, run.engine.steps, strict=True)):
        assert list(entry) == ["loss", "grad_norm", "learning_rate", "epoch", "step"]
        assert entry["loss"] == step["loss"] and entry["grad_norm"] == 2 * step["loss"]
        assert entry["step"] == number + 1
        assert entry["epoch"] == pytest.approx([1 / 3, 2 / 3, 1, 4 / 3, 5 / 3, 2][number])
    assert list(last) == [
        "train_runtime", "train_samples_per_second", "train_steps_per_second", "total_flos", "train_loss",
        "epoch", "step",
    ]  # fmt: skip
    assert last["train_loss"] == output.training_loss == pytest.approx(np.mean([s["loss"] for s in steps]))
    assert last["total_flos"] == 6 * 22 * 32 * 10
    assert output.global_step == 6
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{{'loss': {round(steps[0]['loss'], 4)}, 'grad_norm': ")
    assert "'epoch': 0.33}" in lines[0] and "step 1/6" in lines[0]
    assert "total_flos" not in lines[-1]


def test_loss_between_two_logs_is_a_mean(tmp_path):
    run = fake_trainer(tmp_path, logging_steps=4)
    output = run.train()
    losses = [step["loss"] for step in run.engine.steps]
    first, last = run.state.log_history
    assert first["loss"] == pytest.approx(np.mean(losses[:4])) and first["step"] == 4
    assert last["train_loss"] == output.training_loss == pytest.approx(np.mean(losses))


def test_no_clipping_logs_no_norm(tmp_path):
    run = fake_trainer(tmp_path, max_grad_norm=0)
    run.train()
    assert "grad_norm" not in run.state.log_history[0]
    assert run.engine.steps[0]["max_grad_norm"] == 0


@pytest.mark.parametrize(("max_steps", "epoch"), [(2, 2 / 3), (4, 4 / 3), (6, 2.0)])
def test_max_steps(tmp_path, max_steps, epoch):
    run = fake_trainer(tmp_path, max_steps=max_steps)
    assert run.train().global_step == max_steps == len(run.engine.steps)
    assert run.state.epoch == epoch


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ({"logging_steps": 2}, [2, 4, 6]),
        ({"logging_steps": 4, "logging_first_step": True}, [1, 4]),
        ({"logging_steps": 0.5}, [3, 6]),
        ({"logging_strategy": "epoch"}, [3, 6]),
        ({"logging_strategy": "no"}, []),
    ],
)
def test_when_logs_are_written(tmp_path, options, steps):
    run = fake_trainer(tmp_path, **options)
    run.train()
    assert [entry["step"] for entry in run.state.log_history if "loss" in entry] == steps


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ({"save_strategy": "steps", "save_steps": 4}, [4, 6]),
        ({"save_strategy": "steps", "save_steps": 500}, [6]),
        ({"save_strategy": "steps", "save_steps": 2, "max_steps": 3}, [2, 3]),
        ({"save_strategy": "epoch"}, [3, 6]),
        ({"save_strategy": "no"}, []),
    ],
)
def test_when_checkpoints_are_written(tmp_path, options, steps):
    fake_trainer(tmp_path, **options).train()
    assert sorted(int(path.name.split("-")[1]) for path in tmp_path.glob("checkpoint-*")) == steps


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ({"eval_strategy": "steps", "eval_steps": 2}, [2, 4, 6]),
        ({"eval_strategy": "steps", "eval_steps": 2, "eval_delay": 3}, [4, 6]),
        ({"eval_strategy": "epoch"}, [3, 6]),
        ({"eval_on_start": True}, [0]),
        ({}, []),
    ],
)
def test_when_evaluation_runs(tmp_path, options, steps):
    run = fake_trainer(tmp_path, eval_rows=ROWS, **options)
    run.train()
    assert [entry["step"] for entry in run.state.log_history if "eval_loss" in entry] == steps


def test_evaluation_weighs_batches_by_samples(tmp_path):
    run = fake_trainer(tmp_path, eval_rows=ROWS, per_device_eval_batch_size=4)
    metrics = run.evaluate()
    targets, losses = np.arange(1, 12), 1 + np.arange(11) / 100
    batches = [slice(0, 4), slice(4, 8), slice(8, 11)]
    means = [(targets[b] * losses[b]).sum() / targets[b].sum() for b in batches]
    assert metrics["eval_loss"] == pytest.approx((4 * means[0] + 4 * means[1] + 3 * means[2]) / 11)
    assert set(metrics) == {
        "eval_loss", "eval_model_preparation_time", "eval_runtime", "eval_samples_per_second",
        "eval_steps_per_second",
    }  # fmt: skip


def test_evaluation_of_a_batch_without_targets_adds_nothing(tmp_path):
    rows = (Rows([3, 3, 3], [1, 0, 0]), Rows([3, 3], [1, 0]), Rows([3], [0]))
    losses = [
        fake_trainer(tmp_path, eval_rows=each, per_device_eval_batch_size=2).evaluate()["eval_loss"]
        for each in rows
    ]
    assert losses[0] == losses[1] and math.isnan(losses[2])


@pytest.mark.parametrize("logging_steps", [1, 2, 4])
def test_late_results_are_logged_at_the_same_steps(tmp_path, logging_steps):
    flags = {"logging_steps": logging_steps, "eval_strategy": "steps", "eval_steps": 3, "eval_rows": ROWS}
    runs = [fake_trainer(tmp_path, engine=Engine(behind=behind), **flags) for behind in (0, 1)]
    outputs = [run.train() for run in runs]
    logs = [
        [{k: v for k, v in entry.items() if "runtime" not in k and "second" not in k} for entry in history]
        for history in (run.state.log_history for run in runs)
    ]
    assert logs[0] == logs[1] and outputs[0].training_loss == outputs[1].training_loss


def test_a_group_without_labels_is_a_step_with_loss_zero(tmp_path):
    rows = Rows(np.full(4, 5), np.zeros(4, int))
    run = fake_trainer(tmp_path, rows=rows, num_train_epochs=1)
    run.train()
    assert [(s["rows"], s["loss"]) for s in run.engine.steps] == [([], 0.0)]
    assert run.state.log_history[0]["loss"] == 0.0 and run.state.log_history[0]["grad_norm"] == 0.0


class Events(TrainerCallback):
    """Records the events that it gets."""

    def __init__(self):
        self.names = []

    def __getattribute__(self, name):
        if name.startswith("on_"):
            return lambda args, state, control, **kwargs: self.names.append(name)
        return super().__getattribute__(name)


def test_order_of_events(tmp_path):
    events = Events()
    fake_trainer(
        tmp_path,
        callbacks=[events],
        max_steps=1,
        eval_rows=ROWS,
        eval_strategy="steps",
        save_strategy="steps",
    ).train()
    assert events.names == [
        "on_init_end", "on_train_begin", "on_epoch_begin", "on_step_begin", "on_substep_end",
        "on_pre_optimizer_step", "on_optimizer_step", "on_step_end", "on_log", "on_prediction_step",
        "on_prediction_step", "on_log", "on_evaluate", "on_save", "on_epoch_end", "on_log", "on_train_end",
    ]  # fmt: skip


def test_callbacks_may_be_none(tmp_path):
    assert fake_trainer(tmp_path, callbacks=None, max_steps=1).train().global_step == 1


def test_importing_the_trainer_is_light():
    code = (
        "import sys, fastsft.trainer\n"
        "print([m for m in ('transformers', 'torch.distributed.fsdp') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_metrics_files_and_table(tmp_path, capsys):
    run = fake_trainer(tmp_path)
    output = run.train()
    capsys.readouterr()
    run.log_metrics("train", output.metrics)
    run.save_metrics("train", output.metrics)
    assert capsys.readouterr().out.startswith("***** train metrics *****\n  epoch ")
    assert json.loads((tmp_path / "all_results.json").read_text()) == output.metrics


def test_a_tracker_hears_what_is_logged(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = fake_trainer(tmp_path, report_to="tensorboard", logging_dir=str(tmp_path / "events"))
    run.train()
    heard = [
        (e.step, e.value) for e in EventAccumulator(str(tmp_path / "events")).Reload().Scalars("train/loss")
    ]
    logged = [(entry["step"], entry["loss"]) for entry in run.state.log_history if "loss" in entry]
    assert heard == [(step, pytest.approx(loss, rel=1e-6)) for step, loss in logged] and len(heard) == 6
