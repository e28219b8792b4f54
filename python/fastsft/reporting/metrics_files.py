"""`<split>_results.json` and the table of a split's metrics, as transformers 4.57 writes and prints them."""

from __future__ import annotations

import datetime
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastsft import _C
from fastsft.callbacks.state import TrainOutput
from fastsft.runtime.messages import tell
from fastsft.runtime.output_files import write_output
from fastsft.runtime.regular_files import read_json_object

if TYPE_CHECKING:
    from fastsft.reporting.reported_run import ReportedRun


def metrics_format(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Values as a person reads them: h:mm:ss of runtimes, GF of total_flos, four decimals of other floats."""
    return {name: _readable(name, value) for name, value in metrics.items()}


def metrics_table(split: str, metrics: Mapping[str, Any]) -> str:
    """The lines that `Trainer.log_metrics` prints: a title, then names and values in columns."""
    shown = {name: str(value) for name, value in metrics_format(metrics).items()}
    name_width = max(map(len, shown), default=0)
    value_width = max(map(len, shown.values()), default=0)
    rows = [f"  {name:<{name_width}} = {shown[name]:>{value_width}}" for name in sorted(shown)]
    return "\n".join([f"***** {split} metrics *****", *rows])


def write_metrics(
    directory: str | Path, split: str, metrics: Mapping[str, Any], *, combined: bool = True
) -> None:
    """Write `<split>_results.json` in `directory`; with `combined` also bring all_results.json up to date."""
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
    """The metrics that earlier splits wrote. Something else of that name is put aside, with a line."""
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


_OF_RUN = ("epoch", "train_loss")  # the same for whoever ends it: they say whose file it is


def save_results(trainer: ReportedRun, output: TrainOutput) -> None:
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
