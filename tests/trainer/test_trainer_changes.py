"""What a script changes between `Trainer(...)` and its calls: arguments and data sets."""

import numpy as np
import pytest

from fake_run import Engine, Model, Rows
from fastsft.arguments import TrainingArguments
from fastsft.callbacks import TrainerCallback
from fastsft.trainer import Trainer

pytestmark = pytest.mark.usefixtures("fake_saving")


ROWS = Rows(np.arange(10, 21), np.arange(1, 12))
OTHER = Rows(np.arange(10, 18), np.arange(1, 9))


def trainer(tmp_path, *, train_dataset=ROWS, eval_dataset=None, callbacks=(), **options):
    flags = {
        "output_dir": str(tmp_path), "use_cpu": True, "per_device_train_batch_size": 2, "logging_steps": 1,
        "gradient_accumulation_steps": 2, "num_train_epochs": 2, "save_strategy": "no",
        "model_max_length": 32, "disable_tqdm": True, "plot_loss": False, **options,
    }  # fmt: skip
    return Trainer(
        Model(Engine()), args=TrainingArguments(**flags), train_dataset=train_dataset,
        eval_dataset=eval_dataset, callbacks=callbacks,
    )  # fmt: skip


def steps_of(run):
    return [sorted(step["rows"]) for step in run.engine.steps]


@pytest.mark.parametrize(
    "change",
    [
        {"max_steps": 5},
        {"num_train_epochs": 1},
        {"gradient_accumulation_steps": 3},
        {"per_device_train_batch_size": 4},
        {"dataloader_drop_last": True},
        {"train_sampling_strategy": "sequential"},
        {"micro_batch_tokens": 40},
        {"seed": 3},
        {"learning_rate": 1e-2, "warmup_steps": 2},
    ],
)
def test_changed_arguments_train_as_if_given(tmp_path, change):
    changed, given = trainer(tmp_path / "a"), trainer(tmp_path / "b", **change)
    for name, value in change.items():
        setattr(changed.args, name, value)
    changed.train()
    given.train()
    assert (
        changed._run.planner.plan == given._run.planner.plan
        and changed._run.planner.token_budget == given._run.planner.token_budget
    )
    assert changed.engine.steps == given.engine.steps
    assert changed.state.max_steps == given.state.max_steps
    assert changed.engine.reserved == given.engine.reserved


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("recompute", "block", r"recompute from 'auto' to 'block'; .* set them back, or change them before"),
        ("model_max_length", 64, "model_max_length from 32 to 64"),
        ("grad_dtype", "bfloat16", "grad_dtype from 'float32' to 'bfloat16'"),
        ("sync_each_batch", True, "sync_each_batch from None to True"),
        ("full_determinism", True, "full_determinism from False to True"),
        ("eval_strategy", "epoch", "--eval_strategy epoch needs data to evaluate on"),
    ],
)
def test_changes_that_cannot_be_followed_are_refused(tmp_path, name, value, message):
    run = trainer(tmp_path)
    before = getattr(run.args, name)
    setattr(run.args, name, value)
    with pytest.raises(ValueError, match=message):
        run.train()
    assert run.engine.steps == []
    setattr(run.args, name, before)
    run.train()
    assert len(run.engine.steps) == 6


@pytest.mark.parametrize("method", ["evaluate", "predict"])
def test_evaluations_follow_changed_arguments_or_refuse_them(tmp_path, method):
    run = trainer(tmp_path, eval_dataset=ROWS, prediction_loss_only=True)

    def metrics_of(run):
        return run.evaluate() if method == "evaluate" else run.predict(ROWS).metrics

    run.args.model_max_length = 64
    with pytest.raises(
        ValueError, match=rf"Trainer\.{method}: args changed .* model_max_length from 32 to 64"
    ):
        metrics_of(run)
    run.args.model_max_length = 32
    run.args.past_index = 1
    with pytest.raises(ValueError, match="does not support --past_index"):
        metrics_of(run)
    run.args.past_index, run.args.per_device_eval_batch_size, run.args.max_steps = -1, "2", 5
    given = trainer(tmp_path, eval_dataset=ROWS, prediction_loss_only=True, per_device_eval_batch_size=2)
    loss = next(name for name in metrics_of(given) if name.endswith("_loss"))
    assert metrics_of(run)[loss] == metrics_of(given)[loss]
    assert run.args.per_device_eval_batch_size == 2 and run._run.planner.plan.max_steps == 5


def test_arguments_that_callbacks_change_wait_for_the_next_run(tmp_path):
    class Changes(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            args.max_steps, args.model_max_length = 3, 64
            control.should_evaluate = True

    run = trainer(tmp_path, eval_dataset=ROWS, callbacks=[Changes])
    run.train()
    assert len(run.engine.steps) == 6
    with pytest.raises(ValueError, match="model_max_length from 32 to 64"):
        run.train()


def test_a_file_in_place_of_the_output_directory(tmp_path):
    run = trainer(tmp_path)
    (tmp_path / "file").write_text("x")
    for name, got in (("file", "a file"), ("file/sub", "Not a directory")):
        run.args.output_dir = str(tmp_path / name)
        with pytest.raises(
            ValueError, match=f"--output_dir: .*{name}: expected a directory .*, got: {got}; "
        ):
            run.train()


class Notes(TrainerCallback):
    """The arguments that each event came with."""

    def __init__(self):
        self.seen = []

    def on_step_end(self, args, state, control, **kwargs):
        self.seen.append(args)

    on_evaluate = on_step_end


def test_other_arguments_are_those_of_everything(tmp_path):
    notes = Notes()
    run = trainer(tmp_path / "a", eval_dataset=ROWS, callbacks=[notes])
    given = trainer(tmp_path / "b", eval_dataset=ROWS, per_device_train_batch_size=4, max_steps=4)
    run.args = given.args
    assert run.args is given.args and run.state.train_batch_size == 4
    run.train()
    run.evaluate()
    given.train()
    assert all(args is given.args for args in notes.seen) and len(notes.seen) == 5
    assert run.progress.args is given.args
    assert run._run.planner.plan == given._run.planner.plan and run.engine.steps == given.engine.steps
    assert run.state.train_batch_size == given.state.train_batch_size == 4


def test_other_arguments_that_cannot_be_followed(tmp_path):
    run = trainer(tmp_path)
    before = run.args
    with pytest.raises(TypeError, match=r"expected args to be fastsft\.TrainingArguments"):
        run.args = {"max_steps": 3}
    assert run.args is before
    run.args = TrainingArguments(str(tmp_path), use_cpu=True, model_max_length=64)
    with pytest.raises(ValueError, match="model_max_length from 32 to 64"):
        run.train()
    run.args = before

    class Sets(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            run.args = before

    run.add_callback(Sets)
    with pytest.raises(ValueError, match=r"Trainer\.args: cannot be set while train"):
        run.train()


def test_a_subclass_may_set_arguments_first(tmp_path):
    class Early(Trainer):
        def __init__(self, args):
            self.args = args
            super().__init__(Model(Engine()), args=args, train_dataset=ROWS)

    run = Early(TrainingArguments(str(tmp_path), use_cpu=True, model_max_length=32, plot_loss=False))
    assert run.args.model_max_length == 32 and run._run.planner.plan.max_steps > 0


def test_predictions_of_a_later_data_set_must_fit(tmp_path, monkeypatch):
    run = trainer(tmp_path, eval_dataset=ROWS)
    run.compute_metrics = lambda predicted: {}
    monkeypatch.setattr("fastsft.trainer.prediction.rank_memory", lambda device: 1000)
    for later in (OTHER, {"x": OTHER}):
        with pytest.raises(ValueError, match=r"predictions of 8 rows take .* of host memory"):
            run.eval_dataset = later
    assert run.eval_dataset is ROWS
    run.args.prediction_loss_only = True
    run.eval_dataset = OTHER
    run.args.prediction_loss_only = False
    with pytest.raises(ValueError, match="predictions of 8 rows"):
        run.train()
    assert run.engine.steps == []
    run.preprocess_logits_for_metrics = lambda logits, labels: logits.argmax(-1)
    run.eval_dataset = ROWS
    run.train()


def test_another_train_dataset_is_trained(tmp_path):
    run, given = trainer(tmp_path / "a"), trainer(tmp_path / "b", train_dataset=OTHER)
    run.train_dataset = OTHER
    assert (
        run.train_dataset is OTHER
        and run._run.planner.plan == given._run.planner.plan
        and run._run.planner.memory_plan == given._run.planner.memory_plan
    )
    run.train()
    given.train()
    assert steps_of(run) == steps_of(given) and run.state.max_steps == given.state.max_steps == 4


def test_a_train_dataset_that_cannot_be_trained_leaves_the_old_one(tmp_path):
    run = trainer(tmp_path)
    foreign = Rows([4], [1])
    foreign.max_id = 5000
    for bad, message in [(foreign, "token id 5000"), (Rows([], []), "train_dataset is empty")]:
        with pytest.raises(ValueError, match=message):
            run.train_dataset = bad
    assert (
        run.train_dataset is ROWS
        and len(run._run.planner.rows) == 11
        and run._run.planner.plan.max_steps == 6
    )
    run.train_dataset = None
    with pytest.raises(ValueError, match="expected a train_dataset, got None"):
        run.train()
    with pytest.raises(ValueError, match=r"made without training data.*Trainer\(\.\.\., train_dataset="):
        trainer(tmp_path, train_dataset=None).train_dataset = ROWS


def test_another_eval_dataset_is_evaluated(tmp_path):
    run = trainer(tmp_path, eval_dataset=ROWS)
    before = run.evaluate()["eval_loss"]
    run.eval_dataset = OTHER
    expected = trainer(tmp_path, eval_dataset=OTHER).evaluate()["eval_loss"]
    assert run.evaluate()["eval_loss"] == expected != before
    run.eval_dataset = {"x": OTHER}
    assert run.evaluate("x")["eval_loss"] == expected
    run.eval_dataset = None
    with pytest.raises(ValueError, match="evaluation requires an eval_dataset"):
        run.evaluate()


@pytest.mark.parametrize("name", ["train_dataset", "eval_dataset"])
def test_data_sets_are_not_changed_under_a_run(tmp_path, name):
    class Sets(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            setattr(run, name, OTHER)

    run = trainer(tmp_path, callbacks=[Sets])
    with pytest.raises(ValueError, match=f"Trainer.{name}: cannot be set while train"):
        run.train()
    setattr(run, name, OTHER)  # after the run it can
