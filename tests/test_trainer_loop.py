"""The loop around a step: logs, evaluation, saves, resume, signals. The engine is a small fake."""

import json
import math
import os
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest

import fastsft
from fake_run import Engine, Model, Rows, fake_saving
from fastsft import _C
from fastsft.arguments import TrainingArguments
from fastsft.callbacks import TrainerCallback
from fastsft.state import TrainerState
from fastsft.token_rows import TokenRows
from fastsft.trainer import Trainer


@pytest.fixture(autouse=True)
def saving(monkeypatch):
    module = fake_saving()
    monkeypatch.setitem(sys.modules, "fastsft.saving", module)
    monkeypatch.setattr(fastsft, "saving", module, raising=False)


ROWS = Rows(np.arange(10, 21), np.arange(1, 12))


def trainer(tmp_path, *, engine=None, rows=ROWS, **options):
    callbacks = options.pop("callbacks", ())
    eval_rows = options.pop("eval_rows", None)
    flags = {
        "output_dir": str(tmp_path), "use_cpu": True, "per_device_train_batch_size": 2, "logging_steps": 1,
        "gradient_accumulation_steps": 2, "num_train_epochs": 2, "save_strategy": "no", "learning_rate": 1e-3,
        "model_max_length": 32, "disable_tqdm": True, "plot_loss": False, **options,
    }  # fmt: skip
    return Trainer(
        Model(engine or Engine()),
        args=TrainingArguments(**flags),
        train_dataset=rows,
        eval_dataset=eval_rows,
        callbacks=callbacks,
    )


def test_steps_rows_and_rates(tmp_path):
    run = trainer(tmp_path, weight_decay=0.1, max_grad_norm=0.5, adam_beta2=0.95, label_smoothing_factor=0.2)
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
    assert run.engine.reserved == tuple(run.memory_plan.work.shapes().values())  # before the first step


def test_log_history(tmp_path, capsys):
    run = trainer(tmp_path)
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
    run = trainer(tmp_path, logging_steps=4)
    output = run.train()
    losses = [step["loss"] for step in run.engine.steps]
    first, last = run.state.log_history
    assert first["loss"] == pytest.approx(np.mean(losses[:4])) and first["step"] == 4
    assert last["train_loss"] == output.training_loss == pytest.approx(np.mean(losses))


def test_no_clipping_logs_no_norm(tmp_path):
    run = trainer(tmp_path, max_grad_norm=0)
    run.train()
    assert "grad_norm" not in run.state.log_history[0]
    assert run.engine.steps[0]["max_grad_norm"] == 0


@pytest.mark.parametrize(("max_steps", "epoch"), [(2, 2 / 3), (4, 4 / 3), (6, 2.0)])
def test_max_steps(tmp_path, max_steps, epoch):
    run = trainer(tmp_path, max_steps=max_steps)
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
    run = trainer(tmp_path, **options)
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
    trainer(tmp_path, **options).train()
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
    run = trainer(tmp_path, eval_rows=ROWS, **options)
    run.train()
    assert [entry["step"] for entry in run.state.log_history if "eval_loss" in entry] == steps


def test_evaluation_weighs_batches_by_samples(tmp_path):
    run = trainer(tmp_path, eval_rows=ROWS, per_device_eval_batch_size=4)
    metrics = run.evaluate()
    targets, losses = np.arange(1, 12), 1 + np.arange(11) / 100
    batches = [slice(0, 4), slice(4, 8), slice(8, 11)]
    means = [(targets[b] * losses[b]).sum() / targets[b].sum() for b in batches]
    assert metrics["eval_loss"] == pytest.approx((4 * means[0] + 4 * means[1] + 3 * means[2]) / 11)
    assert set(metrics) == {
        "eval_loss", "eval_model_preparation_time", "eval_runtime", "eval_samples_per_second",
        "eval_steps_per_second",
    }  # fmt: skip


def test_evaluation_of_a_batch_without_targets_is_nan(tmp_path):
    run = trainer(tmp_path, eval_rows=Rows([3, 3, 3], [1, 0, 0]), per_device_eval_batch_size=2)
    assert math.isnan(run.evaluate()["eval_loss"])


def test_evaluation_needs_data(tmp_path):
    with pytest.raises(ValueError, match="eval_dataset"):
        trainer(tmp_path).evaluate()


@pytest.mark.parametrize(
    "options", [{"eval_strategy": "steps"}, {"eval_strategy": "epoch"}, {"eval_on_start": True}]
)
def test_evaluation_without_data_is_refused_at_the_start(tmp_path, options):
    with pytest.raises(ValueError, match=r"--eval_(strategy|on_start).*--eval_data_path"):
        trainer(tmp_path, **options)


@pytest.mark.parametrize("name", ["file", "file/below", "/proc/self"])
def test_output_dir_that_takes_no_files_is_refused_at_the_start(tmp_path, name):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="choose another --output_dir"):
        trainer(tmp_path, output_dir=str(tmp_path / name))


def test_output_dir_of_the_model_is_refused_at_the_start(tmp_path, monkeypatch):
    monkeypatch.setattr(Model, "source_directory", tmp_path)
    with pytest.raises(ValueError, match="never overwritten, choose another --output_dir"):
        trainer(tmp_path)
    trainer(tmp_path / "other")
    assert list((tmp_path / "other").iterdir()) == []


def test_a_module_is_no_model(tmp_path):
    import torch

    with pytest.raises(ValueError, match=r"expected model to be a fastsft.model.CausalLM.*got Linear"):
        Trainer(torch.nn.Linear(1, 1), args=TrainingArguments(output_dir=str(tmp_path), use_cpu=True))


@pytest.mark.parametrize("stop", [1, 2, 3, 4, 5])
def test_resume_continues_as_if_nothing_happened(tmp_path, stop):
    whole = trainer(tmp_path / "whole")
    whole.train()
    trainer(tmp_path / "cut", max_steps=stop, save_strategy="steps", lr_scheduler_type="constant").train()
    rest = trainer(tmp_path / "cut", save_strategy="steps")
    output = rest.train(resume_from_checkpoint=True)
    assert [s["rows"] for s in rest.engine.steps] == [s["rows"] for s in whole.engine.steps[stop:]]
    assert [s["learning_rate"] for s in rest.engine.steps] == [
        s["learning_rate"] for s in whole.engine.steps[stop:]
    ]
    steps = [entry for entry in rest.state.log_history if "loss" in entry]
    assert [s["step"] for s in steps] == [1, 2, 3, 4, 5, 6] and steps[-1]["epoch"] == 2
    assert rest.state.total_flos == whole.state.total_flos
    # As in transformers, the mean covers the steps since the resume only, over all steps.
    assert output.training_loss == pytest.approx(sum(s["loss"] for s in rest.engine.steps) / 6)


def test_a_resumed_state_is_that_of_this_rank(tmp_path):
    trainer(tmp_path, max_steps=2, save_strategy="steps").train()
    path = tmp_path / "checkpoint-2" / "trainer_state.json"
    saved = json.loads(path.read_text())
    others = {"is_world_process_zero": False, "is_local_process_zero": False, "train_batch_size": 7}
    path.write_text(json.dumps(saved | others))
    run = trainer(tmp_path, max_steps=3)
    run.train(resume_from_checkpoint=True)
    assert (run.state.is_world_process_zero, run.state.is_local_process_zero) == (True, True)
    assert run.state.train_batch_size == 2


def test_training_twice_saves_twice(tmp_path):
    run = trainer(tmp_path, max_steps=2, save_strategy="steps")
    run.train()
    shutil.rmtree(tmp_path / "checkpoint-2")
    run.train()
    assert (tmp_path / "checkpoint-2").is_dir()


def test_a_save_that_failed_is_tried_again(tmp_path, monkeypatch):
    run = trainer(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(
            fastsft.saving, "save_checkpoint", lambda *_: (_ for _ in ()).throw(RuntimeError("full"))
        )
        with pytest.raises(RuntimeError, match="full"):
            run.save_checkpoint()
    run.save_checkpoint()
    assert (tmp_path / "checkpoint-0").is_dir()


def test_resume_of_a_finished_run_trains_nothing(tmp_path):
    trainer(tmp_path, max_steps=2, save_strategy="steps").train()
    again = trainer(tmp_path, max_steps=2, save_strategy="steps")
    assert again.train(resume_from_checkpoint=True).global_step == 2
    assert again.engine.steps == []


def test_resume_that_starts_its_epoch_again(tmp_path):
    trainer(tmp_path, max_steps=4, save_strategy="steps").train()
    again = trainer(tmp_path, ignore_data_skip=True)
    again.train(resume_from_checkpoint=True)
    assert again.engine.steps[0]["rows"] == _C.epoch_order(11, 42, 1).tolist()[:4]


def test_nothing_to_resume(tmp_path):
    with pytest.raises(ValueError, match="No valid checkpoint found in output directory"):
        trainer(tmp_path).train(resume_from_checkpoint=True)


def test_state_file_is_that_of_transformers(tmp_path, golden):
    trainer(tmp_path, save_strategy="steps", save_steps=3).train()
    ours = json.loads((tmp_path / "checkpoint-3" / "trainer_state.json").read_text())
    theirs = json.loads((golden / "trainer" / "h_resume.json").read_text())["trainer_state"]
    assert set(ours) == set(theirs)
    assert ours["stateful_callbacks"] == theirs["stateful_callbacks"]
    assert (ours["save_steps"], ours["logging_steps"], ours["eval_steps"]) == (3, 1, 500)


def test_transformers_reads_the_state(tmp_path):
    from transformers import TrainerState as Theirs

    run = trainer(tmp_path)
    run.train()
    run.save_state()
    state = Theirs.load_from_json(str(tmp_path / "trainer_state.json"))
    assert (state.global_step, state.max_steps, len(state.log_history)) == (6, 6, 7)


def test_unknown_keys_of_a_state(tmp_path):
    (tmp_path / "s.json").write_text('{"globl_step": 3}')
    with pytest.raises(ValueError, match="globl_step"):
        TrainerState.load_from_json(tmp_path / "s.json")


@pytest.mark.parametrize("behind", [0, 1])
@pytest.mark.parametrize("logging_steps", [1, 100])
def test_bad_numbers_stop_the_run_and_name_the_step(tmp_path, behind, logging_steps):
    run = trainer(tmp_path, engine=Engine(bad_step=3, behind=behind), logging_steps=logging_steps)
    with pytest.raises(RuntimeError, match="step 3: loss nan"):
        run.train()
    assert run.state.global_step == 2
    assert len(run.engine.steps) == (3 if behind and logging_steps > 1 else 2)


@pytest.mark.parametrize("logging_steps", [1, 2, 4])
def test_late_results_are_logged_at_the_same_steps(tmp_path, logging_steps):
    flags = {"logging_steps": logging_steps, "eval_strategy": "steps", "eval_steps": 3, "eval_rows": ROWS}
    runs = [trainer(tmp_path, engine=Engine(behind=behind), **flags) for behind in (0, 1)]
    outputs = [run.train() for run in runs]
    logs = [
        [{k: v for k, v in entry.items() if "runtime" not in k and "second" not in k} for entry in history]
        for history in (run.state.log_history for run in runs)
    ]
    assert logs[0] == logs[1] and outputs[0].training_loss == outputs[1].training_loss


def test_a_group_without_labels_is_a_step_with_loss_zero(tmp_path):
    rows = Rows(np.full(4, 5), np.zeros(4, int))
    run = trainer(tmp_path, rows=rows, num_train_epochs=1)
    run.train()
    assert [(s["rows"], s["loss"]) for s in run.engine.steps] == [([], 0.0)]
    assert run.state.log_history[0]["loss"] == 0.0 and run.state.log_history[0]["grad_norm"] == 0.0


class Events(TrainerCallback):
    """Remembers what it was told."""

    def __init__(self):
        self.names = []

    def __getattribute__(self, name):
        if name.startswith("on_"):
            return lambda args, state, control, **kwargs: self.names.append(name)
        return super().__getattribute__(name)


def test_order_of_events(tmp_path):
    events = Events()
    trainer(
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
    assert trainer(tmp_path, callbacks=None, max_steps=1).train().global_step == 1


def test_a_callback_may_stop_the_run(tmp_path):
    class Stop(TrainerCallback):
        def on_step_end(self, args, state, control, **_):
            control.should_training_stop = state.global_step == 2

    run = trainer(tmp_path, callbacks=[Stop])
    assert run.train().global_step == 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_leaves(tmp_path, number, capsys):
    class Hit(TrainerCallback):
        def on_step_end(self, args, state, control, **_):
            if state.global_step == 2:
                os.kill(os.getpid(), number)

    before = signal.getsignal(number)  # a suite in the background may run with SIGINT ignored
    with pytest.raises(SystemExit) as left:
        trainer(tmp_path, callbacks=[Hit]).train()
    assert left.value.code == 128 + number
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-2"]
    assert "the same command resumes" in capsys.readouterr().out
    assert signal.getsignal(number) == before


def test_usr1_saves_and_goes_on(tmp_path):
    class Hit(TrainerCallback):
        def on_step_end(self, args, state, control, **_):
            if state.global_step == 2:
                os.kill(os.getpid(), signal.SIGUSR1)

    run = trainer(tmp_path, callbacks=[Hit])
    assert run.train().global_step == 6
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-2"]


def test_second_interrupt_is_immediate(tmp_path):
    class Hit(TrainerCallback):
        def on_step_end(self, args, state, control, **_):
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        trainer(tmp_path, callbacks=[Hit]).train()


def test_importing_the_trainer_is_light():
    code = (
        "import sys, fastsft.trainer\n"
        "print([m for m in ('transformers', 'torch.distributed.fsdp') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_vocabulary_that_does_not_hold_the_data_is_refused_at_the_start():
    rows = _C.TokenDataset()
    rows.append(np.array([1, 5, 2], dtype=np.int32), [(1, 3)])
    TokenRows(rows, 8).check_ids(6)
    with pytest.raises(ValueError, match="token id 5, the model knows 5"):
        TokenRows(rows, 8).check_ids(5)


def test_curves_are_there_when_a_run_ends_early(tmp_path):
    class Hit(TrainerCallback):
        def on_step_end(self, args, state, control, **_):
            if state.global_step == 2:
                os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(SystemExit):
        trainer(tmp_path / "signal", callbacks=[Hit], plot_loss=True).train()
    assert "stopped: SIGTERM" in (tmp_path / "signal" / "loss.html").read_text()
    with pytest.raises(RuntimeError):
        trainer(tmp_path / "nan", engine=Engine(bad_step=3), plot_loss=True).train()
    page = (tmp_path / "nan" / "loss.html").read_text()
    assert "stopped: NotFiniteError: step 3" in page and "2 of 6" in page


def test_metrics_files_and_table(tmp_path, capsys):
    run = trainer(tmp_path)
    output = run.train()
    capsys.readouterr()
    run.log_metrics("train", output.metrics)
    run.save_metrics("train", output.metrics)
    assert capsys.readouterr().out.startswith("***** train metrics *****\n  epoch ")
    assert json.loads((tmp_path / "all_results.json").read_text()) == output.metrics


def test_a_tracker_hears_what_is_logged(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = trainer(tmp_path, report_to="tensorboard", logging_dir=str(tmp_path / "events"))
    run.train()
    heard = [
        (e.step, e.value) for e in EventAccumulator(str(tmp_path / "events")).Reload().Scalars("train/loss")
    ]
    logged = [(entry["step"], entry["loss"]) for entry in run.state.log_history if "loss" in entry]
    assert heard == [(step, pytest.approx(loss, rel=1e-6)) for step, loss in logged] and len(heard) == 6
