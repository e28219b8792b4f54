"""The results files of a finished run: training, and the last evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from fastsft.callbacks.state import TrainOutput
from fastsft.runtime.regular_files import read_json_object

if TYPE_CHECKING:
    from fastsft.arguments import TrainingArguments
    from fastsft.callbacks.state import TrainerState
    from fastsft.reporting.progress import Progress


class FinishedTrainer(Protocol):
    """A Trainer whose `train` has returned."""

    progress: Progress

    @property
    def args(self) -> TrainingArguments: ...
    @property
    def state(self) -> TrainerState: ...
    def save_metrics(self, split: str, metrics: dict[str, float]) -> None: ...


_OF_RUN = ("epoch", "train_loss")  # the same for whoever ends it: they say whose file it is


def save_results(trainer: FinishedTrainer, output: TrainOutput) -> None:
    """train_results.json, eval_results.json if there was an evaluation, all_results.json; on rank 0.

    A resumed run that had nothing left to do writes once more what the run that did it had measured, which
    may have ended before it came to all_results.json. Where there is none, or that of another run or of fewer
    steps, it writes its own, whose speeds are those of no step.
    """
    trained = trainer.state.global_step != trainer.progress.pace.first_step
    before = {} if trained else _measured_before(Path(trainer.args.output_dir or "."), output.metrics)
    trainer.save_metrics("train", before or output.metrics)
    evaluations = [entry for entry in trainer.state.log_history if "eval_runtime" in entry]
    if evaluations:
        last = evaluations[-1]
        trainer.save_metrics("eval", {name: value for name, value in last.items() if name != "step"})


def _measured_before(folder: Path, metrics: Mapping[str, float]) -> dict[str, float]:
    """train_results.json of the same training; {} without it."""
    try:
        found = read_json_object(folder / "train_results.json")
    except (ValueError, OSError):
        return {}
    return found if all(found.get(name) == metrics.get(name) for name in _OF_RUN) else {}
