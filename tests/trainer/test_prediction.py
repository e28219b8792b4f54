"""Predictions and compute_metrics beside transformers' own Trainer, on one rank and on two."""

from __future__ import annotations

import datetime
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fastsft.arguments import TrainingArguments
from fastsft.callbacks import TrainerCallback
from fastsft.planning import devices as device_memory
from fastsft.runtime.messages import collected
from fastsft.trainer import Trainer, prediction
from fastsft.trainer.prediction import check_size
from padded_items import WIDTH, random_items
from ranks import run_ranks
from tiny_models import write_model


def accuracy(predicted: Any) -> dict[str, Any]:
    """Return the share of targets that are predicted, from logits or from their argmax."""
    chosen, labels = predicted.predictions, predicted.label_ids
    chosen = chosen.argmax(-1) if chosen.ndim == 3 else chosen
    learned = labels[:, 1:] != -100
    right = (chosen[:, :-1] == labels[:, 1:]) & learned
    return {"accuracy": right.sum() / learned.sum(), "eval_rows": np.int64(len(labels))}


def choose(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Keep only the best token of each position; used as a hook."""
    assert logits.shape[:2] == labels.shape
    return logits.argmax(-1)


def make_trainer(directory: Path, output: Path, **given: Any) -> Trainer:
    flags = given.pop("flags", {})
    args = TrainingArguments(
        str(output), use_cpu=True, per_device_eval_batch_size=2, model_max_length=WIDTH, disable_tqdm=True,
        plot_loss=False, **flags,
    )  # fmt: skip
    return Trainer(str(directory), args, eval_dataset=random_items(), **given)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("prediction") / "model", "untied")


@pytest.fixture(scope="module")
def theirs(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the predictions and metrics of transformers' Trainer for the same rows."""
    import transformers  # seconds, which ranks need not spend

    args = transformers.TrainingArguments(
        str(tmp_path_factory.mktemp("theirs")), use_cpu=True, per_device_eval_batch_size=2, report_to="none"
    )
    module = transformers.LlamaForCausalLM.from_pretrained(model, use_cache=False)
    trainer = transformers.Trainer(
        module, args, data_collator=transformers.default_data_collator, compute_metrics=accuracy
    )
    items = [{name: torch.from_numpy(value) for name, value in item.items()} for item in random_items()]
    output = trainer.predict(items)
    return {"output": output, "evaluated": trainer.evaluate(items)}


def test_predictions_are_those_of_transformers(model: Path, theirs: dict[str, Any], tmp_path: Path) -> None:
    """Logits are equal also at padding."""
    trainer = make_trainer(model, tmp_path)
    ours, other = trainer.predict(random_items()), theirs["output"]
    assert ours.predictions.shape == (7, WIDTH, 70) and ours.predictions.dtype == np.float32
    assert np.array_equal(ours.label_ids, other.label_ids)
    error = np.linalg.norm(ours.predictions - other.predictions)
    assert error <= 1e-5 * np.linalg.norm(other.predictions)
    assert ours.metrics["test_loss"] == pytest.approx(other.metrics["test_loss"], rel=1e-5)


@pytest.mark.parametrize("hook", [None, choose])
def test_own_metrics_stand_beside_the_loss(
    model: Path, theirs: dict[str, Any], tmp_path: Path, hook: Any
) -> None:
    trainer = make_trainer(model, tmp_path, compute_metrics=accuracy, preprocess_logits_for_metrics=hook)
    metrics, wanted = trainer.evaluate(), theirs["evaluated"]
    assert set(metrics) == set(wanted) and "eval_model_preparation_time" in metrics
    assert metrics["eval_accuracy"] == wanted["eval_accuracy"] and type(metrics["eval_accuracy"]) is float
    assert metrics["eval_rows"] == 7 and type(metrics["eval_rows"]) is int
    assert metrics["eval_loss"] == pytest.approx(wanted["eval_loss"], rel=1e-5)
    assert trainer.state.log_history[-1]["eval_accuracy"] == metrics["eval_accuracy"]


TRAINED = {
    "max_steps": 2, "eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1,
}  # fmt: skip


def train_with(model: Path, output: Path, metrics: Any, callbacks: Any = None, **flags: Any) -> Trainer:
    """Train for two steps with evaluations, whose compute_metrics returns `metrics`."""
    trainer = make_trainer(
        model, output, train_dataset=random_items(), flags={**TRAINED, **flags},
        compute_metrics=lambda predicted: metrics, callbacks=callbacks,
    )  # fmt: skip
    trainer.train()
    return trainer


@pytest.mark.parametrize(("given", "kept"), [
    (torch.tensor(2.0), 2.0),
    (torch.tensor([[3]]), 3),
    (np.array(2.5), 2.5),
    ({"a": np.float32(1), "b": torch.tensor(2)}, {"a": 1.0, "b": 2}),
    ([np.float32(1), 2, {"deep": (np.int64(4), "text")}], [1.0, 2, {"deep": [4, "text"]}]),
    (np.bool_(True), True),
    (np.arange(4).reshape(2, 2), [[0, 1], [2, 3]]),
    ({"a": torch.ones(2, dtype=torch.bfloat16)}, {"a": [1.0, 1.0]}),
    (None, None),
])  # fmt: skip
def test_numbers_of_torch_and_numpy_are_in_the_checkpoint(
    model: Path, tmp_path: Path, given: Any, kept: Any
) -> None:
    train_with(model, tmp_path, {"share": given})
    state = json.loads((tmp_path / "checkpoint-1" / "trainer_state.json").read_text())
    (found,) = [entry["eval_share"] for entry in state["log_history"] if "eval_share" in entry]
    assert found == kept and type(found) is type(kept)


def test_a_tensor_chooses_the_best_model(model: Path, tmp_path: Path) -> None:
    best = {"load_best_model_at_end": True, "metric_for_best_model": "share"}
    trainer = train_with(model, tmp_path, {"share": torch.tensor(2.0)}, **best)
    assert trainer.state.best_metric == 2.0 and type(trainer.state.best_metric) is float


UNWRITABLE = [{"a": {1, 2}}, 1j, datetime.date(2026, 1, 1)]


@pytest.mark.parametrize("value", UNWRITABLE)
def test_a_metric_that_a_checkpoint_cannot_hold_is_named_at_the_evaluation(
    model: Path, tmp_path: Path, value: Any
) -> None:
    """A run refuses such a metric. Outside of a run, where nothing is saved, evaluate() returns it."""
    with pytest.raises(ValueError, match="compute_metrics: eval_table: expected what JSON can hold"):
        train_with(model, tmp_path, {"table": value})
    assert not list(tmp_path.glob("checkpoint-*"))
    metrics = {"table": value}
    assert "eval_table" in make_trainer(model, tmp_path, compute_metrics=lambda _: metrics).evaluate()


@pytest.mark.parametrize("value", UNWRITABLE)
def test_a_run_that_saves_nothing_goes_on_without_it(model: Path, tmp_path: Path, value: Any) -> None:
    """The metric is passed to `on_evaluate`, but it is not logged."""
    seen: list[Any] = []

    class Looks(TrainerCallback):
        def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any, **more: Any) -> None:
            seen.append((metrics["eval_table"], metrics["epoch"]))

    with collected() as notices:
        trainer = train_with(model, tmp_path, {"table": value}, save_strategy="no", callbacks=[Looks()])
    assert [table for table, _ in seen] == [value, value]
    assert any("eval_table: expected what JSON can hold" in line for line in notices.warned)
    assert not any("eval_table" in entry for entry in trainer.state.log_history)
    trainer.save_state()


@pytest.mark.parametrize("metrics", [None, 0.5, {1: 2}])
def test_metrics_without_names_are_refused(model: Path, tmp_path: Path, metrics: Any) -> None:
    with pytest.raises(ValueError, match="compute_metrics: expected a dictionary of metrics by name, got"):
        make_trainer(model, tmp_path, compute_metrics=lambda _: metrics).evaluate()


def test_a_metric_of_ones_own_chooses_the_best_model(model: Path, tmp_path: Path) -> None:
    values = iter([0.3, 0.9, 0.5])
    flags = {
        "max_steps": 3, "eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1,
        "load_best_model_at_end": True, "metric_for_best_model": "share",
    }  # fmt: skip
    trainer = make_trainer(
        model, tmp_path, train_dataset=random_items(), flags=flags,
        compute_metrics=lambda predicted: {"share": next(values)},
    )  # fmt: skip
    trainer.train()
    assert (trainer.state.best_global_step, trainer.state.best_metric) == (2, 0.9)


def test_the_loss_alone(model: Path, tmp_path: Path) -> None:
    def never(*_: Any) -> Any:
        raise AssertionError("predictions were made")

    trainer = make_trainer(
        model, tmp_path, flags={"prediction_loss_only": True}, compute_metrics=never,
        preprocess_logits_for_metrics=never,
    )  # fmt: skip
    assert set(trainer.evaluate()) >= {"eval_loss"}
    output = trainer.predict(random_items())
    assert output.predictions is None and output.label_ids is None


def test_several_arrays_a_row(model: Path, tmp_path: Path) -> None:
    def hook(logits: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return logits.argmax(-1), (labels != -100).sum(1).to(torch.bfloat16)

    trainer = make_trainer(model, tmp_path, preprocess_logits_for_metrics=hook)
    chosen, counts = trainer.predict(random_items()).predictions
    assert chosen.shape == (7, WIDTH) and counts.tolist() == [3, 5, 6, 3, 10, 2, 6]


@pytest.mark.parametrize(
    ("kept", "message"),
    [
        (lambda logits, labels: logits.mean(), r"expected tensors with 2 rows.*got \[\]"),
        (lambda logits, labels: "no", "got str"),
        (lambda logits, labels: torch.zeros(len(labels), 1, int(labels.max())), "the same shape of every"),
        (lambda logits, labels: (logits,) * (1 + (len(labels) == 1)), "the same parts of every batch, got"),
    ],
)
def test_hooks_that_keep_no_rows(model: Path, tmp_path: Path, kept: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_trainer(model, tmp_path, preprocess_logits_for_metrics=kept).predict(random_items())


def test_what_does_not_fit_is_refused_before_it_is_computed(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make_trainer(model, tmp_path)
    needed = 7 * WIDTH * 70 * 4
    monkeypatch.setattr(prediction, "rank_memory", lambda device: needed - 1)
    with pytest.raises(ValueError, match=r"7 rows take 46 KiB of host memory.*argmax.*prediction_loss_only"):
        trainer.predict(random_items())
    with monkeypatch.context() as patch:
        patch.setattr(prediction, "Predictor", None)  # nothing was computed for it
        with pytest.raises(ValueError, match="host memory"):
            trainer.predict(random_items())
    trainer.preprocess_logits_for_metrics = choose
    assert trainer.predict(random_items()).predictions.shape == (7, WIDTH)


def test_metrics_of_logits_that_do_not_fit_are_refused_at_the_start(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prediction, "rank_memory", lambda device: 7 * WIDTH * 70 * 4 - 1)
    with pytest.raises(ValueError, match="7 rows take 46 KiB of host memory"):
        make_trainer(model, tmp_path, compute_metrics=accuracy)
    make_trainer(model, tmp_path, compute_metrics=accuracy, preprocess_logits_for_metrics=choose)
    make_trainer(model, tmp_path, compute_metrics=accuracy, flags={"prediction_loss_only": True})


def test_what_a_batch_shows_is_looked_at(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_size(10, bytes_of_row=16, memory=160)
    trainer = make_trainer(model, tmp_path, preprocess_logits_for_metrics=lambda logits, labels: logits)
    monkeypatch.setattr(prediction, "rank_memory", lambda device: 7 * WIDTH * 70 * 4 - 1)
    with pytest.raises(ValueError, match="7 rows take 46 KiB"):
        trainer.predict(random_items())


@pytest.mark.parametrize("name", ["batch_eval_metrics", "include_for_metrics", "eval_do_concat_batches"])
def test_arguments_that_would_change_the_metrics_are_refused(model: Path, tmp_path: Path, name: str) -> None:
    value: Any = {"include_for_metrics": ["inputs"], "eval_do_concat_batches": False}.get(name, True)
    with pytest.raises(ValueError, match=f"--{name}"):
        make_trainer(model, tmp_path, flags={name: value}, compute_metrics=accuracy)
    make_trainer(model, tmp_path, flags={name: value})


def refuse_rank(groups: dict[str, str], model: Path, output: Path) -> str:
    """Return the message of the error on this rank, if the second of two ranks has no memory."""
    if os.environ["RANK"] == "1":
        device_memory.usable_memory = lambda device, mine: 1
    with pytest.raises(ValueError, match=r"7 rows take 46 KiB of host memory") as raised:
        make_trainer(model, output, flags={"fsdp": "full_shard"}, compute_metrics=accuracy)
    return str(raised.value)


def refuse_batch(groups: dict[str, str], model: Path, output: Path) -> str:
    """Return the error's message on this rank, if the second rank's hook keeps more than the memory holds."""
    device_memory.usable_memory = lambda device, mine: 4096
    keeps_all = os.environ["RANK"] == "1"
    trainer = make_trainer(
        model, output, flags={"fsdp": "full_shard"},
        preprocess_logits_for_metrics=lambda logits, labels: logits if keeps_all else logits.argmax(-1),
    )  # fmt: skip
    with pytest.raises(ValueError, match=r"7 rows take 46 KiB of host memory") as raised:
        trainer.predict(random_items())
    return str(raised.value)


def run_rank(groups: dict[str, str], model: Path, output: Path) -> Any:
    """Return the results of predict and evaluate on this rank."""
    trainer = make_trainer(
        model, output, flags={"fsdp": "full_shard"}, compute_metrics=accuracy,
    )  # fmt: skip
    return trainer.predict(random_items()), trainer.evaluate()


def test_all_ranks_refuse_what_does_not_fit_on_one(model: Path, tmp_path: Path) -> None:
    texts = run_ranks(2, refuse_rank, model, tmp_path, launched=True)
    assert all(text.startswith("predictions of 7 rows") for text in texts)
    first, second = run_ranks(2, refuse_batch, model, tmp_path, launched=True, seconds=60)
    assert second.startswith("predictions of 7 rows") and first == f"predictions: rank 1 failed: {second}"


def test_two_ranks_predict_all_rows(model: Path, theirs: dict[str, Any], tmp_path: Path) -> None:
    """With seven rows in batches of two, rows are repeated to fill up the last batch, but count once."""
    alone = make_trainer(model, tmp_path).predict(random_items())
    for output, metrics in run_ranks(2, run_rank, model, tmp_path, launched=True):
        assert np.allclose(output.predictions, alone.predictions, rtol=1e-5, atol=1e-5)
        assert np.array_equal(output.label_ids, alone.label_ids)
        assert metrics["eval_accuracy"] == theirs["evaluated"]["eval_accuracy"]
