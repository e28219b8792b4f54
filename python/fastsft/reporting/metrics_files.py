"""`<split>_results.json` and the table of a split's metrics, as transformers 4.57 writes and prints them."""

from __future__ import annotations

import datetime
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fastsft import _C
from fastsft.runtime.messages import tell
from fastsft.runtime.output_files import write_output
from fastsft.runtime.regular_files import read_json_object


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
