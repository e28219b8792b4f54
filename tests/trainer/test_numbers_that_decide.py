"""Losses without targets, or that are not finite, cause a line and decide nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import fastsft
from fastsft.arguments import TrainingArguments
from fastsft.data.token_rows import TokenRows
from fastsft.reporting.end_page import end_page
from fastsft.runtime.messages import collected
from fastsft.trainer import Trainer
from fastsft.trainer.evaluation import evaluation_loss, exact_loss
from padded_items import WIDTH, random_items
from tiny_models import make_engine, write_model

POISON = 69  # a token whose embedding is NaN in `poisoned`


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"), "untied")


def bare(item: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of the row without targets, as if its prompt filled it."""
    return {**item, "labels": np.full_like(item["labels"], -100)}


def rows_with_bare(*numbers: int) -> list[dict[str, Any]]:
    return [bare(item) if number in numbers else item for number, item in enumerate(random_items())]


def arguments(folder: Path, **more: Any) -> TrainingArguments:
    flags = {
        "use_cpu": True,
        "model_max_length": WIDTH,
        "disable_tqdm": True,
        "plot_loss": False,
        "report_to": [],
    }
    return TrainingArguments(str(folder), **{**flags, **more})


def batch_losses(directory: Path, items: list[dict[str, Any]], batch: int) -> list[float]:
    """Return the mean cross entropy of each row's batch, by transformers; NaN if the batch has no target."""
    from transformers import LlamaForCausalLM

    model, losses = LlamaForCausalLM.from_pretrained(directory), []
    for begin in range(0, len(items), batch):
        rows = items[begin : begin + batch]
        ids, labels, mask = (torch.from_numpy(np.stack([row[name] for row in rows]))
                             for name in ("input_ids", "labels", "attention_mask"))  # fmt: skip
        with torch.no_grad():
            loss = model(ids, attention_mask=mask, labels=labels).loss
        losses += [float(loss)] * len(rows)
    return losses


@pytest.mark.parametrize("average", [True, False])
@pytest.mark.parametrize(
    ("batch", "numbers"), [(1, (1, 4)), (1, (0,)), (1, (6,)), (2, (2, 3)), (3, (3, 4, 5))]
)
def test_batches_without_targets_add_nothing(
    model: Path, tmp_path: Path, batch: int, numbers: tuple[int, ...], average: bool
) -> None:
    items = rows_with_bare(*numbers)
    args = arguments(tmp_path, per_device_eval_batch_size=batch, average_tokens_across_devices=average)
    with collected() as said:
        ours = evaluation_loss(make_engine(model), TokenRows.from_dataset(items, WIDTH), args)
    theirs = batch_losses(model, items, batch)
    assert np.isnan(theirs).sum() == len(numbers)
    assert ours == pytest.approx(np.nanmean(theirs), rel=1e-5)
    assert f"{len(numbers)} of 7 rows are in batches without a token to learn" in said.warned[0]
    assert f"{', '.join(map(str, numbers))} (from 0)" in said.warned[0]


def test_a_row_without_targets_in_a_batch_that_has_some(model: Path, tmp_path: Path) -> None:
    items = rows_with_bare(1)
    with collected() as said:
        args = arguments(tmp_path, per_device_eval_batch_size=3)
        ours = evaluation_loss(make_engine(model), TokenRows.from_dataset(items, WIDTH), args)
    assert ours == pytest.approx(np.mean(batch_losses(model, items, 3)), rel=1e-5)
    assert not said.warned


@pytest.fixture(scope="module")
def poisoned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = write_model(tmp_path_factory.mktemp("poisoned"), "untied")
    weights = load_file(directory / "model.safetensors")
    weights["model.embed_tokens.weight"][POISON] = float("nan")
    save_file(weights, directory / "model.safetensors", {"format": "pt"})
    return directory


@pytest.mark.parametrize("compute", [evaluation_loss, exact_loss])
def test_a_loss_that_is_not_finite_names_its_rows(poisoned: Path, tmp_path: Path, compute: Any) -> None:
    items = random_items()
    for number in (2, 5):
        items[number]["input_ids"][0] = POISON
    with collected() as said:
        loss = compute(
            make_engine(poisoned),
            TokenRows.from_dataset(items, WIDTH),
            arguments(tmp_path, per_device_eval_batch_size=1),
        )
    assert np.isnan(loss)
    assert "not finite in the batches of 2 rows: rows 2, 5 (from 0)" in said.told[0]


def trained(model: Path, folder: Path, evaluated: Any, *callbacks: Any, **more: Any) -> tuple[Trainer, Any]:
    flags = {
        "max_steps": 4, "per_device_train_batch_size": 2, "per_device_eval_batch_size": 1, "logging_steps": 1,
        "eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1,
        "learning_rate": 0.01, "lr_scheduler_type": "constant", **more,
    }  # fmt: skip
    with collected() as said:
        trainer = Trainer(
            str(model), arguments(folder, **flags), train_dataset=random_items(), eval_dataset=evaluated,
            callbacks=list(callbacks),
        )  # fmt: skip
        trainer.train()
    return trainer, said


NOTHING = [bare(item) for item in random_items()]
DECIDES_NOTHING = "this evaluation decides neither about the best model"


def test_nan_is_no_best_model(model: Path, tmp_path: Path) -> None:
    trainer, said = trained(model, tmp_path, NOTHING, load_best_model_at_end=True)
    assert all(np.isnan(entry["eval_loss"]) for entry in trainer.state.log_history if "eval_loss" in entry)
    assert trainer.state.best_model_checkpoint is None and trainer._run.checkpoints.best.keeps_last
    assert any("no evaluation had a finite metric" in line for line in said.told)
    assert any(DECIDES_NOTHING in line for line in said.warned)
    assert any("no row has a token to learn" in line for line in said.warned)
    assert "weights     those of the last step, 4" in end_page(
        trainer._run, keeps_last=trainer._run.checkpoints.best.keeps_last
    )


def test_nan_saves_no_best(model: Path, tmp_path: Path) -> None:
    _, said = trained(model, tmp_path, NOTHING, save_strategy="best")
    assert not list(tmp_path.glob("checkpoint-*")) and any(DECIDES_NOTHING in line for line in said.warned)


def test_nan_lowers_no_rate(model: Path, tmp_path: Path) -> None:
    """torch's plateau counts a NaN as a bad evaluation; with patience 0, each NaN would halve the rate."""
    kind = {
        "lr_scheduler_type": "reduce_lr_on_plateau",
        "lr_scheduler_kwargs": {"patience": 0, "factor": 0.5},
    }
    trainer, said = trained(model, tmp_path, NOTHING, **kind)
    rates = {entry["learning_rate"] for entry in trainer.state.log_history if "learning_rate" in entry}
    assert rates == {0.01} and any(DECIDES_NOTHING in line for line in said.warned)


def test_nan_stops_no_run(model: Path, tmp_path: Path) -> None:
    stops = fastsft.EarlyStoppingCallback(early_stopping_patience=1)
    trainer, said = trained(model, tmp_path, NOTHING, stops, load_best_model_at_end=True)
    assert trainer.state.global_step == 4 and any(DECIDES_NOTHING in line for line in said.warned)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_metric_of_a_script_that_is_not_finite(model: Path, tmp_path: Path, value: float) -> None:
    """Only the third evaluation is finite, so that it is the best one whatever its value."""
    found = iter([value, value, 0.25, value])
    with collected() as said:
        trainer = Trainer(
            str(model),
            arguments(
                tmp_path, max_steps=4, eval_strategy="steps", eval_steps=1, save_strategy="steps",
                save_steps=1,
                metric_for_best_model="c", greater_is_better=True, load_best_model_at_end=True,
            ),
            train_dataset=random_items(), eval_dataset=random_items(),
            compute_metrics=lambda predicted: {"c": next(found)},
        )  # fmt: skip
        trainer.train()
    assert trainer.state.best_metric == 0.25 and trainer.state.best_global_step == 3
    assert any("eval_c is" in line for line in said.warned)


def test_one_row_without_targets_leaves_the_best_model(model: Path, tmp_path: Path) -> None:
    trainer, _ = trained(model, tmp_path, rows_with_bare(3), load_best_model_at_end=True)
    losses = [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]
    assert np.isfinite(losses).all() and trainer.state.best_metric == min(losses)
    assert (
        Path(trainer.state.best_model_checkpoint or "").name == f"checkpoint-{1 + losses.index(min(losses))}"
    )


def plain_run(model: Path, folder: Path, items: Any, **more: Any) -> tuple[Trainer, Any]:
    flags = {
        "max_steps": len(items), "per_device_train_batch_size": 1, "logging_steps": 1, "save_strategy": "no",
        "train_sampling_strategy": "sequential", "lr_scheduler_type": "constant", **more,
    }  # fmt: skip
    with collected() as said:
        trainer = Trainer(str(model), arguments(folder, **flags), train_dataset=items)
        trainer.train()
    return trainer, said


def logged_losses(trainer: Trainer) -> list[float]:
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def test_a_step_without_targets_is_no_best_loss(model: Path, tmp_path: Path) -> None:
    """The step's logged loss is 0.0, as in transformers (docs/spec/trainer_semantics.md, section 7)."""
    trainer, said = plain_run(model, tmp_path, rows_with_bare(0, 3))
    losses = logged_losses(trainer)
    assert losses[0] == losses[3] == 0.0
    learned = {step: loss for step, loss in enumerate(losses, 1) if loss}
    step = min(learned, key=learned.__getitem__)
    page = " ".join(end_page(trainer._run).split())
    assert f"best train loss {learned[step]:.4f} at step {step}" in page and "0.0000" not in page
    assert "2 of 7 steps had no token to learn" in page
    assert sum("none of its conversations has a token to learn" in line for line in said.told) == 1


def test_a_log_over_such_a_step_is_none_either(model: Path, tmp_path: Path) -> None:
    trainer, _ = plain_run(model, tmp_path, rows_with_bare(0, 3), logging_steps=2)
    page = " ".join(end_page(trainer._run).split())
    logs = logged_losses(trainer)  # of steps 1 and 2, 3 and 4, 5 and 6
    assert (
        trainer._run.stepper.losses.diluted == [2, 4] and f"best train loss {logs[2]:.4f} at step 6" in page
    )


def test_a_resumed_run_knows_of_them(model: Path, tmp_path: Path) -> None:
    more = {"save_strategy": "steps", "save_steps": 4}
    plain_run(model, tmp_path, rows_with_bare(0, 3), **more)
    trainer = Trainer(
        str(model),
        arguments(
            tmp_path, max_steps=7, per_device_train_batch_size=1, logging_steps=1,
            lr_scheduler_type="constant", train_sampling_strategy="sequential", **more,
        ),
        train_dataset=rows_with_bare(0, 3),
    )  # fmt: skip
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert trainer._run.stepper.losses.diluted == [1, 4]


@pytest.mark.parametrize(("rate", "steps"), [(20.0, 4), (1e6, 14)])
def test_a_ruined_run_is_not_called_well(model: Path, tmp_path: Path, rate: float, steps: int) -> None:
    trainer, said = plain_run(model, tmp_path, (random_items() * 2)[:steps], learning_rate=rate)
    faults, page = list(trainer._run.stepper.loss_watch.faults()), " ".join(end_page(trainer._run).split())
    assert faults and all(" ".join(fault.split()) in page for fault in faults)
    assert any("lower --learning_rate" in line for line in said.told)
    losses = logged_losses(trainer)
    if losses[-1] > 2 * losses[0]:
        assert "best train loss" not in page and "the weights are of no use" in page


def test_a_run_that_learns_is_not_warned_of(model: Path, tmp_path: Path) -> None:
    trainer, said = plain_run(model, tmp_path, random_items() * 2, learning_rate=1e-3)
    assert not list(trainer._run.stepper.loss_watch.faults()) and "warning" not in end_page(trainer._run)
    assert not any("loss is" in line or "gradient" in line for line in said.told)


def test_gradients_of_exactly_0(model: Path, tmp_path: Path) -> None:
    """With a zero head, no gradient reaches the layers; with a zero final norm, none reaches the head."""
    directory = write_model(tmp_path / "dead", "untied")
    weights = load_file(directory / "model.safetensors")
    weights["lm_head.weight"].zero_()
    weights["model.norm.weight"].zero_()
    save_file(weights, directory / "model.safetensors", {"format": "pt"})
    trainer, said = plain_run(directory, tmp_path / "out", random_items())
    assert sum("the gradient is exactly 0" in line for line in said.told) == 1
    assert "the gradient is exactly 0, so that nothing is learned in 7 of 7 steps" in " ".join(
        end_page(trainer._run).split()
    )
