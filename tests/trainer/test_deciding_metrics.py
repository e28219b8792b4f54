"""Ranks whose evaluations differ: rank 0's metrics decide, and every rank does the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import transformers

import fastsft
from disagreeing_run import items
from fastsft.arguments import TrainingArguments
from fastsft.runtime.launch import launch
from fastsft.trainer import Trainer
from ranks import run_ranks
from tiny_models import write_model

FACTOR = 0.5


class Falling:
    """A metric that gets better on rank 0 at every evaluation, and worse on rank 1."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, predicted: Any) -> dict[str, float]:
        self.count += 1
        return {"t": -float(self.count) if launch().rank == 0 else float(self.count)}


class OnlyFirst(Falling):
    """The same metric, but only rank 0 returns it."""

    def __call__(self, predicted: Any) -> dict[str, float]:
        return super().__call__(predicted) if launch().rank == 0 else {}


class Rising(Falling):
    """The negated metric: on rank 0, no evaluation is better than the first."""

    def __call__(self, predicted: Any) -> dict[str, float]:
        return {name: -value for name, value in super().__call__(predicted).items()}


def trainer(directory: Path, output: Path, metric: str, metrics: Any, callbacks: Any, **more: Any) -> Trainer:
    flags: dict[str, Any] = {
        "use_cpu": True, "max_steps": 4, "per_device_train_batch_size": 2, "model_max_length": 32,
        "disable_tqdm": True, "plot_loss": False, "report_to": [], "eval_strategy": "steps", "eval_steps": 1,
        "logging_steps": 1, "save_strategy": "best", "metric_for_best_model": metric, "ddp_timeout": 30,
        "greater_is_better": False, **more,
    }  # fmt: skip
    args = TrainingArguments(output_dir=str(output), **flags)
    return Trainer(
        directory, args, train_dataset=items(8), eval_dataset=items(4), compute_metrics=metrics,
        callbacks=callbacks,
    )  # fmt: skip


def outcome(run: Trainer) -> dict[str, Any]:
    state = run.state
    return {
        "rates": [entry["learning_rate"] for entry in state.log_history if "learning_rate" in entry],
        "best": (state.best_metric, state.best_global_step),
        "steps": state.global_step,
    }


def on_rank(groups: dict[str, str], directory: Path, output: Path, kind: str) -> dict[str, Any]:
    metrics = {"falling": Falling, "only_first": OnlyFirst, "rising": Rising}.get(kind, lambda: None)()
    metric = kind if metrics is None else "t"
    plateau = {
        "lr_scheduler_type": "reduce_lr_on_plateau", "learning_rate": 1.0,
        "lr_scheduler_kwargs": {"patience": 0, "factor": FACTOR},
    }  # fmt: skip
    run = trainer(directory, output, metric, metrics, [], **plateau)
    run.train()
    return outcome(run)


def stopped_on_rank(groups: dict[str, str], directory: Path, output: Path, stopping: Any) -> dict[str, Any]:
    seen: list[float] = []

    class Seen(fastsft.TrainerCallback):
        def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **_: Any) -> None:
            seen.append(metrics["eval_t"])
            metrics["eval_added"] = 1.0

    run = trainer(
        directory, output, "t", Rising(), [Seen, stopping(2)], load_best_model_at_end=True, max_steps=6
    )
    evaluate, returned = run.evaluate, []

    def noting(**keys: Any) -> Any:
        returned.append(evaluate(**keys))
        return returned[-1]

    run.evaluate = noting  # type: ignore[method-assign]
    run.train()
    told = [callback for callback in run.callback_handler.callbacks if isinstance(callback, stopping)]
    return {
        **outcome(run), "seen": seen, "added": [each["eval_added"] for each in returned],
        "returned": [each["eval_t"] for each in returned],
        "waits": told[0].early_stopping_patience_counter,
    }  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"), "untied")


@pytest.mark.variants("only_first")
@pytest.mark.parametrize("kind", ["falling", "only_first", "rising"])
def test_best_checkpoint_and_plateau_follow_rank_0(model: Path, tmp_path: Path, kind: str) -> None:
    first, second = run_ranks(2, on_rank, model, tmp_path / "out", kind, launched=True, seconds=120)
    assert first == second
    if kind == "rising":
        assert first["rates"] == [1.0, 1.0, FACTOR, FACTOR**2] and first["best"] == (1.0, 1)
    else:
        assert first["rates"] == [1.0] * 4 and first["best"] == (-4.0, 4)


@pytest.mark.parametrize("kind", ["samples_per_second", "runtime"])
def test_times_of_an_evaluation(model: Path, tmp_path: Path, kind: str) -> None:
    """Ranks measure different times; rank 0's decide."""
    first, second = run_ranks(2, on_rank, model, tmp_path / "out", kind, launched=True, seconds=120)
    assert first == second and first["steps"] == 4


@pytest.mark.variants("EarlyStoppingCallback1")
@pytest.mark.parametrize("stopping", [fastsft.EarlyStoppingCallback, transformers.EarlyStoppingCallback])
def test_callbacks_hear_rank_0_and_the_result_is_the_ranks_own(
    model: Path, tmp_path: Path, stopping: Any
) -> None:
    told = run_ranks(2, stopped_on_rank, model, tmp_path / "out", stopping, launched=True, seconds=120)
    first, second = told
    assert first["steps"] == second["steps"] == 3 and first["waits"] == second["waits"] == 2
    assert first["best"] == second["best"] == (1.0, 1)
    assert first["seen"] == second["seen"] == [1.0, 2.0, 3.0]
    assert first["returned"] == [1.0, 2.0, 3.0] and second["returned"] == [-1.0, -2.0, -3.0]
    assert first["added"] == second["added"] == [1.0] * 3
