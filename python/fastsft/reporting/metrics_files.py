"""Writes and prints metrics in the form of transformers 4.57."""

from __future__ import annotations

import datetime
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from fastsft import _C
from fastsft.callbacks.state import TrainOutput
from fastsft.runtime.messages import tell
from fastsft.runtime.output_files import write_output
from fastsft.runtime.regular_files import read_json_object

if TYPE_CHECKING:
    from fastsft.arguments import TrainingArguments
    from fastsft.callbacks.state import TrainerState
    from fastsft.reporting.progress import Progress


def metrics_format(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metrics as readable values.

    Runtimes become h:mm:ss, total_flos becomes GF, memory becomes MB, other floats are rounded to four
    decimals.
    """
    return {name: _readable(name, value) for name, value in metrics.items()}


def metrics_table(split: str, metrics: Mapping[str, Any]) -> str:
    """Return the text that `Trainer.log_metrics` prints: a title, then names and values in columns."""
    shown = {name: str(value) for name, value in metrics_format(metrics).items()}
    name_width = max(map(len, shown), default=0)
    value_width = max(map(len, shown.values()), default=0)
    rows = [f"  {name:<{name_width}} = {shown[name]:>{value_width}}" for name in sorted(shown)]
    return "\n".join([f"***** {split} metrics *****", *rows])


def write_metrics(
    directory: str | Path, split: str, metrics: Mapping[str, Any], *, combined: bool = True
) -> None:
    """Write `<split>_results.json` into `directory`. combined: True to update all_results.json, too."""
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / f"{split}_results.json", metrics)
    if combined:
        path = folder / "all_results.json"
        _write(path, {**_read(path), **metrics})


def _readable(name: str, value: float) -> float | str:
    if "_mem_" in name:
        return f"{int(value) >> 20}MB"
    if "_runtime" in name:
        hundredths = int(abs(value - int(value)) * 100)
        return f"{datetime.timedelta(seconds=int(value))}.{hundredths:02d}"
    if name == "total_flos":
        return f"{int(value) >> 30}GF"
    return round(value, 4) if isinstance(value, float) else value


def _read(path: Path) -> dict[str, Any]:
    """Return the metrics that earlier splits wrote to the file; archive an unreadable file."""
    if not os.path.lexists(path):
        return {}
    try:
        return read_json_object(path)
    except ValueError as error:
        if not _C.protection_of(str(path)):
            aside = _C.put_aside(str(path))
            tell(f"{error}; it is now called {Path(aside).name}, and a new one is written")
        return {}


def _write(path: Path, metrics: Mapping[str, Any]) -> None:
    write_output(path, json.dumps(dict(metrics), indent=4, sort_keys=True))


class FinishedTrainer(Protocol):
    """A Trainer whose `train` has returned."""

    progress: Progress

    @property
    def args(self) -> TrainingArguments: ...
    @property
    def state(self) -> TrainerState: ...
    def save_metrics(self, split: str, metrics: dict[str, float]) -> None: ...


_OF_RUN = ("epoch", "train_loss")  # metrics that are equal in every process that finishes the same training


def save_results(trainer: FinishedTrainer, output: TrainOutput) -> None:
    """Write train_results.json, all_results.json and, after an evaluation, eval_results.json. Rank 0 writes.

    A resumed run that had no steps left has no training metrics. The metrics that the training run wrote to
    train_results.json are then written again, since that run may have ended before it wrote all_results.json.
    If there is no such file, or if it belongs to another training, this run's metrics are written.
    """
    trained = trainer.state.global_step != trainer.progress.pace.first_step
    before = {} if trained else _measured_before(Path(trainer.args.output_dir or "."), output.metrics)
    trainer.save_metrics("train", before or output.metrics)
    evaluations = [entry for entry in trainer.state.log_history if "eval_runtime" in entry]
    if evaluations:
        last = evaluations[-1]
        trainer.save_metrics("eval", {name: value for name, value in last.items() if name != "step"})


def _measured_before(folder: Path, metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the content of train_results.json if the same training wrote the file, else {}."""
    try:
        metrics_before = read_json_object(folder / "train_results.json")
    except (ValueError, OSError):
        return {}
    return metrics_before if all(metrics_before.get(name) == metrics.get(name) for name in _OF_RUN) else {}
