"""A resumed plateau schedule has the rates of an uninterrupted run, whatever else was evaluated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from disagreeing_run import items
from fastsft.arguments import TrainingArguments
from fastsft.callbacks import TrainerCallback
from fastsft.trainer import Trainer
from tiny_models import write_model


class OtherData(TrainerCallback):
    """Evaluates on other data at `step`, which the plateau ignores; stops the run at step `stop`."""

    def __init__(self, step: int, stop: int | None) -> None:
        self.step, self.stop = step, stop
        self.trainer: Any = None

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self.step:
            self.trainer.evaluate(eval_dataset=items(3))
        control.should_training_stop |= state.global_step == self.stop


def trainer(model: Path, output: Path, stop: int | None = None, **more: Any) -> Trainer:
    flags: dict[str, Any] = {
        "use_cpu": True, "max_steps": 8, "per_device_train_batch_size": 2, "model_max_length": 32,
        "disable_tqdm": True, "plot_loss": False, "report_to": [], "eval_strategy": "steps", "eval_steps": 1,
        "logging_steps": 1, "save_strategy": "steps", "save_steps": 1, "greater_is_better": True,
        "metric_for_best_model": "c", "learning_rate": 1.0, "lr_scheduler_type": "reduce_lr_on_plateau",
        "lr_scheduler_kwargs": {"patience": 2, "factor": 0.5}, **more,
    }  # fmt: skip
    callback = OtherData(2, stop)
    made = Trainer(
        model, TrainingArguments(output_dir=str(output), **flags), train_dataset=items(16),
        eval_dataset=items(4), compute_metrics=lambda predicted: {"c": 1.0}, callbacks=[callback],
    )  # fmt: skip
    callback.trainer = made
    return made


def rates(run: Trainer) -> list[float]:
    return [entry["learning_rate"] for entry in run.state.log_history if "learning_rate" in entry]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"), "untied")


def test_evaluations_of_callbacks_do_not_count(model: Path, tmp_path: Path) -> None:
    whole = trainer(model, tmp_path / "whole")
    whole.train()
    assert len(set(rates(whole))) > 1
    trainer(model, tmp_path / "run", stop=3).train()
    run = trainer(model, tmp_path / "run")
    run.train(resume_from_checkpoint=True)
    assert rates(run) == rates(whole)


def test_evaluations_at_the_start_of_resumed_runs_do_not_count(model: Path, tmp_path: Path) -> None:
    whole = trainer(model, tmp_path / "whole")
    whole.train()
    for stop in (2, 3, 5):
        trainer(model, tmp_path / "run", stop=stop, eval_on_start=True).train(
            resume_from_checkpoint=True if stop > 2 else None
        )
    run = trainer(model, tmp_path / "run", eval_on_start=True)
    run.train(resume_from_checkpoint=True)
    assert rates(run) == rates(whole)


@pytest.mark.parametrize(
    ("first", "second", "taken"),
    [(0.5, 0.25, [0.5, 0.25]), (float("nan"), 0.25, [0.25]), (0.5, float("inf"), [0.5])],
)
def test_checkpoints_hold_what_was_taken(
    model: Path, tmp_path: Path, first: float, second: float, taken: list[float]
) -> None:
    """Numbers that are not finite are not."""
    run = trainer(model, tmp_path, stop=3)
    values = iter([first, 2.0, second, 3.0])  # 2.0 is the callback's
    run.compute_metrics = lambda predicted: {"c": next(values)}
    run.train()
    saved = json.loads((tmp_path / "checkpoint-3/fastsft_state.json").read_text())
    assert saved["plateau"]["taken"] == taken
    resumed = trainer(model, tmp_path)
    resumed.train(resume_from_checkpoint=True)
    assert resumed.state.global_step == 8
