"""What scripts do with a Trainer besides training: evaluate, predict, callbacks, the best checkpoint."""

import json
import math

import numpy as np
import pytest

from fake_run import Engine, Model, Rows
from fastsft.arguments import TrainingArguments
from fastsft.callbacks import TrainerCallback
from fastsft.data.token_rows import TokenRows
from fastsft.model.model_config import ModelConfig
from fastsft.runtime import messages as notices
from fastsft.trainer import Trainer
from fastsft.trainer.early_stopping import EarlyStoppingCallback
from fastsft.trainer.evaluation import evaluation_loss, exact_loss
from fastsft.trainer.events import DefaultFlow
from fastsft.trainer.preflight import disable_evaluation

pytestmark = pytest.mark.usefixtures("fake_saving")


ROWS = Rows(np.arange(10, 21), np.arange(1, 12))


def trainer(tmp_path, losses=(), eval_rows=ROWS, callbacks=(), **options):
    flags = {
        "output_dir": str(tmp_path), "use_cpu": True, "per_device_train_batch_size": 2, "logging_steps": 1,
        "gradient_accumulation_steps": 2, "num_train_epochs": 2, "save_strategy": "no",
        "eval_strategy": "steps", "eval_steps": 1, "model_max_length": 32, "disable_tqdm": True,
        "plot_loss": False, **options,
    }  # fmt: skip
    return Trainer(
        Model(Engine()),
        args=TrainingArguments(**flags),
        train_dataset=ROWS,
        eval_dataset=eval_rows,
        callbacks=[Losses(losses), *callbacks],
    )


class Losses(TrainerCallback):
    """Puts values in place of the losses of the evaluations."""

    def __init__(self, values):
        self.values = iter(values)

    def on_evaluate(self, args, state, control, metrics, **kwargs):
        metrics.update({"eval_loss": value} if (value := next(self.values, None)) is not None else {})


def checkpoints(tmp_path):
    return sorted(int(path.name.split("-")[1]) for path in tmp_path.glob("checkpoint-*"))


def test_save_strategy_best_saves_improvements_alone(tmp_path):
    run = trainer(
        tmp_path, [5.0, 4.0, math.nan, 4.0, 3.5, 9.0], save_strategy="best", metric_for_best_model="loss"
    )
    run.train()
    assert checkpoints(tmp_path) == [1, 2, 5]
    assert (run.state.best_metric, run.state.best_global_step) == (3.5, 5)
    assert run.state.best_model_checkpoint == str(tmp_path / "checkpoint-5")
    saved = json.loads((tmp_path / "checkpoint-2" / "trainer_state.json").read_text())
    assert saved["best_model_checkpoint"] == str(tmp_path / "checkpoint-2")


def test_the_best_step_is_named_when_its_checkpoint_is_there(tmp_path):
    run = trainer(
        tmp_path, [5.0, 4.0, 1.0, 4.0], save_strategy="steps", save_steps=2, metric_for_best_model="eval_loss"
    )
    run.train()
    assert run.state.best_global_step == 3
    assert run.state.best_model_checkpoint == str(tmp_path / "checkpoint-2")


def test_greater_is_better(tmp_path):
    options = {"metric_for_best_model": "loss", "greater_is_better": True, "save_strategy": "best"}
    run = trainer(tmp_path, [1.0, 3.0, 2.0, 3.0, 1.0, 1.0], **options)
    run.train()
    assert checkpoints(tmp_path) == [1, 2] and run.state.best_metric == 3.0


def test_a_metric_that_evaluation_lacks(tmp_path):
    run = trainer(tmp_path, metric_for_best_model="accuracy")
    with pytest.raises(ValueError, match=r"no eval_accuracy; choose one of .*eval_loss"):
        run.train()


def test_the_best_of_a_resumed_run_is_remembered(tmp_path):
    options = {"save_strategy": "steps", "save_steps": 1, "metric_for_best_model": "loss"}
    trainer(tmp_path, [5.0, 1.0], max_steps=2, **options).train()
    run = trainer(tmp_path, [4.0, 3.0], max_steps=4, **options)
    run.train(resume_from_checkpoint=True)
    assert run.state.best_model_checkpoint == str(tmp_path / "checkpoint-2")


@pytest.mark.parametrize(
    ("patience", "threshold", "stop"), [(1, 0.0, 3), (2, 0.0, 6), (1, 0.6, 2), (9, 0.0, 6)]
)
def test_early_stopping(tmp_path, patience, threshold, stop):
    callback = EarlyStoppingCallback(patience, threshold)
    options = {"metric_for_best_model": "loss", "logging_steps": 1}
    run = trainer(tmp_path, [5.0, 4.5, 4.5, 4.0, 4.5, 4.5], **options)
    run.add_callback(callback)
    run.train()
    assert run.state.global_step == stop


@pytest.mark.parametrize("flags", [{}, {"metric_for_best_model": "loss", "eval_strategy": "no"}])
def test_early_stopping_needs_evaluations_of_a_metric(tmp_path, flags):
    with pytest.raises(ValueError, match="EarlyStoppingCallback needs"):
        trainer(tmp_path, callbacks=[EarlyStoppingCallback], **flags).train()


@pytest.mark.parametrize(("restore", "count"), [(False, 1), (True, 3)])
def test_callbacks_go_on_where_the_checkpoint_left_them(tmp_path, restore, count):
    options = {"save_strategy": "steps", "save_steps": 1, "metric_for_best_model": "loss"}
    first = trainer(tmp_path, [1.0, 2.0, 2.0], max_steps=3, **options)
    first.add_callback(EarlyStoppingCallback(9))
    first.train()
    second = trainer(tmp_path, [2.0], max_steps=4, restore_callback_states_from_checkpoint=restore, **options)
    callback = EarlyStoppingCallback(9)
    second.add_callback(callback)
    second.train(resume_from_checkpoint=True)
    assert callback.early_stopping_patience_counter == count


def test_evaluation_sets_by_name(tmp_path):
    sets = {"first": ROWS, "second": Rows([4, 4], [1, 3])}
    run = trainer(tmp_path, eval_rows=sets)
    metrics = run.evaluate()
    assert {name for name in metrics if name.endswith("_loss")} == {"eval_first_loss", "eval_second_loss"}
    assert [len(e) for e in run.state.log_history] == [6, 6]
    assert run.evaluate("second")["eval_loss"] == metrics["eval_second_loss"]
    assert run.evaluate({"x": sets["second"]}, metric_key_prefix="test")["test_x_loss"] == pytest.approx(
        metrics["eval_second_loss"]
    )
    with pytest.raises(ValueError, match="no evaluation data is called third; known names: first, second"):
        run.evaluate("third")


def test_predict_gives_metrics_that_are_not_logged(tmp_path):
    run = trainer(tmp_path, prediction_loss_only=True)
    output = run.predict(Rows([4, 4], [1, 3]))
    assert output.predictions is None and output.label_ids is None and run.state.log_history == []
    assert set(output.metrics) == {
        "test_loss", "test_model_preparation_time", "test_runtime", "test_samples_per_second",
        "test_steps_per_second",
    }  # fmt: skip


def test_preparation_is_told_when_evaluation_came_before_training(tmp_path):
    name = "eval_model_preparation_time"
    trained = trainer(tmp_path, eval_on_start=True)
    trained.train()
    assert name not in trained.evaluate()
    assert not [entry for entry in trained.state.log_history if name in entry]
    evaluated = trainer(tmp_path)
    seconds = evaluated.evaluate()[name]
    assert type(seconds) is float and seconds >= 0
    evaluated.train()
    assert evaluated.evaluate()[name] == seconds  # as in transformers, from then on


@pytest.mark.parametrize(("delay", "steps"), [(0, [1, 2, 3, 4, 5, 6]), (3, [3, 4, 5, 6])])
def test_eval_delay(tmp_path, delay, steps):
    run = trainer(tmp_path, eval_delay=delay)
    run.train()
    assert [entry["step"] for entry in run.state.log_history if "eval_loss" in entry] == steps


def test_exact_loss_is_the_mean_over_tokens(tmp_path):
    rows, engine = TokenRows.from_dataset(ROWS, 32), Engine()
    args = TrainingArguments(str(tmp_path), use_cpu=True, per_device_eval_batch_size=4)
    weights = np.arange(1, 12)
    expected = float((weights * (1 + np.arange(11) / 100)).sum() / weights.sum())
    assert exact_loss(engine, rows, args) == pytest.approx(expected, rel=1e-12)
    assert evaluation_loss(engine, rows, args) != pytest.approx(expected, rel=1e-4)
    run = trainer(tmp_path, eval_loss="exact")
    assert run.evaluate()["eval_loss"] == pytest.approx(expected, rel=1e-12)
    empty = TokenRows.from_dataset(Rows([3, 3], [0, 0]), 32)
    assert math.isnan(exact_loss(engine, empty, args))


def test_accelerator(tmp_path):
    run = trainer(tmp_path)
    place = run.accelerator
    assert (place.num_processes, place.process_index, place.local_process_index) == (1, 0, 0)
    assert place.is_main_process and place.is_local_main_process
    place.wait_for_everyone()
    assert place.unwrap_model(run.model_wrapped) is run.model


def test_what_scripts_do_with_the_accelerator_around_a_save(tmp_path, capsys):
    plain, sharded = trainer(tmp_path), trainer(tmp_path, fsdp="full_shard auto_wrap")
    assert plain.accelerator.state.fsdp_plugin is None and sharded.is_fsdp_enabled
    plugin = sharded.accelerator.state.fsdp_plugin
    plugin.limit_all_gathers = True
    plugin.set_state_dict_type("FULL_STATE_DICT")
    assert plugin.state_dict_type.name == "FULL_STATE_DICT"
    with pytest.raises(ValueError, match="got SHARDED_STATE_DICT: fastsft writes consolidated safetensors"):
        plugin.set_state_dict_type("SHARDED_STATE_DICT")
    plain.accelerator.print("said", "once")
    plain.accelerator.end_training()
    assert capsys.readouterr().out == "said once\n"


def test_names_that_scripts_ask_for(tmp_path):
    run = trainer(tmp_path)
    assert run.deepspeed is None and run.optimizer is None and run.lr_scheduler is None
    run.train(trial=None, ignore_keys_for_eval=["past_key_values"])
    run.create_model_card(dataset_name="mine", tags=["x"])
    assert "| learning_rate | 5e-05 |" in (tmp_path / "README.md").read_text()
    assert not hasattr(run, "hp_space")
    for name, way_out in [
        ("hyperparameter_search", "start a run for each setting"),
        ("compute_loss", "the step is the engine's.*evaluate"),
        ("nothing_known", "docs/trainer.md lists what it has"),
    ]:
        with pytest.raises(AttributeError, match=f"fastsft's Trainer has no {name}; {way_out}"):
            getattr(run, name)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("compute_loss", r"Trainer\.compute_loss would never be called"),
        ("_get_train_sampler", r"Trainer\._get_train_sampler would never be called"),
        ("get_train_dataloader", r"Trainer\.get_train_dataloader would never be called.*as train_dataset"),
        ("optimizer", "Trainer: optimizer has no place here"),
        ("lr_scheduler", "Trainer: lr_scheduler has no place here"),
        ("compute_loss_func", "Trainer: compute_loss_func has no place here"),
    ],
)
@pytest.mark.parametrize("on_class", [False, True])
def test_what_a_script_puts_in_place_of_the_step_is_refused(tmp_path, monkeypatch, name, message, on_class):
    run = trainer(tmp_path)
    monkeypatch.setattr(Trainer if on_class else run, name, lambda *args, **kwargs: None, raising=False)
    with pytest.raises(ValueError, match=message):
        run.train()
    assert run.engine.steps == []


@pytest.mark.parametrize("with_time", [False, True])
def test_a_log_of_ones_own_in_the_old_form_and_the_new(tmp_path, with_time):
    class Old(Trainer):
        def log(self, logs):
            super().log({**logs, "mine": 1})

    class New(Trainer):
        def log(self, logs, start_time=None):
            super().log({**logs, "mine": 1}, start_time)

    args = TrainingArguments(
        str(tmp_path), use_cpu=True, max_steps=2, logging_steps=1, save_strategy="no", plot_loss=False,
        include_num_input_tokens_seen=True, model_max_length=32,
    )  # fmt: skip
    run = (New if with_time else Old)(Model(Engine()), args, train_dataset=ROWS)
    run.train()
    assert [entry["mine"] for entry in run.state.log_history] == [1, 1, 1]
    assert ("train_tokens_per_second" in run.state.log_history[0]) is with_time


def test_outside_of_a_run_no_step_is_told(tmp_path, capsys):
    run = trainer(tmp_path)
    run.evaluate()
    told = capsys.readouterr().out
    assert "evaluating 11 rows" in told and " step " not in told
    run.train()
    assert "step 1/6, evaluating" in capsys.readouterr().out


def test_the_configuration_saves_itself(tmp_path):
    config = ModelConfig(use_cache=True, torch_dtype="bfloat16", hidden_size=8)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "config.json").write_text('{"torch_dtype": "float32", "use_cache": false, "old": 1}')
    config.save_pretrained(tmp_path / "out")
    written = json.loads((tmp_path / "out" / "config.json").read_text())
    assert written == {"use_cache": True, "torch_dtype": "float32", "hidden_size": 8}
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["config.json"]
    config.save_pretrained(tmp_path / "new")
    assert json.loads((tmp_path / "new" / "config.json").read_text()) == dict(config)


def test_callbacks_are_added_and_removed(tmp_path):
    run = trainer(tmp_path)
    first, second = TrainerCallback(), TrainerCallback()
    for callback in (first, second):
        run.add_callback(callback)
    run.remove_callback(second)
    assert run.callback_handler.callbacks[-1] is first
    assert isinstance(run.pop_callback(DefaultFlow), DefaultFlow)
    assert run.pop_callback(DefaultFlow) is None and run.pop_callback(second) is None
    run.add_callback(EarlyStoppingCallback)
    assert isinstance(run.callback_handler.callbacks[-1], EarlyStoppingCallback)


@pytest.mark.parametrize(
    ("flags", "left"),
    [
        ({"eval_strategy": "steps"}, "no"),
        ({"evaluation_strategy": "epoch"}, "no"),
        ({"eval_strategy": "steps", "save_strategy": "best", "metric_for_best_model": "loss"}, "steps"),
        ({"eval_strategy": "epoch", "lr_scheduler_type": "reduce_lr_on_plateau"}, "epoch"),
        ({"eval_strategy": "epoch", "save_strategy": "epoch", "load_best_model_at_end": True}, "epoch"),
        ({"eval_strategy": "epoch", "eval_on_start": True}, "epoch"),
    ],
)
def test_evaluation_without_data_is_left_out_where_no_result_is_missed(
    tmp_path, flags, left, caplog, monkeypatch
):
    monkeypatch.setattr(notices, "_said", set())
    args = TrainingArguments(str(tmp_path), use_cpu=True, **flags)
    disable_evaluation(args)
    assert args.eval_strategy == left
    args.resolve()  # a later change of the arguments does not bring it back
    assert args.eval_strategy == left
    assert left != "no" or "nothing is evaluated in this run" in caplog.text
