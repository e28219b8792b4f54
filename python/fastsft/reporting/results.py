"""The results files of a finished run: training, and the last evaluation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastsft.callbacks.state import TrainOutput

if TYPE_CHECKING:
    from fastsft.reporting.reported_run import ReportedRun


def save_results(trainer: ReportedRun, output: TrainOutput) -> None:
    """train_results.json, eval_results.json if there was an evaluation, all_results.json; on rank 0.

    A resumed run that had nothing left to do keeps the files of the run that did it.
    """
    if trainer.state.global_step == trainer.progress.pace.first_step:
        return
    trainer.save_metrics("train", output.metrics)
    evaluations = [entry for entry in trainer.state.log_history if "eval_runtime" in entry]
    if evaluations:
        last = evaluations[-1]
        trainer.save_metrics("eval", {name: value for name, value in last.items() if name != "step"})
