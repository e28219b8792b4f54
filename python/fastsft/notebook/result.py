"""Result of `fastsft.launch`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from fastsft.reporting.console_text import duration_text
from fastsft.reporting.loss_history import LossHistory, drawing


class LossPlot:
    """The curves of a run; a notebook shows them. svg: one element a panel."""

    def __init__(self, log_history: Iterable[Mapping[str, Any]]) -> None:
        self.history = LossHistory.of(log_history)
        self.svg = drawing(self.history)

    def _repr_html_(self) -> str:
        return self.svg or "nothing was logged"


@dataclass(frozen=True)
class TrainingResult:
    """A finished run: its directory, the metrics of its last log, all logs, and how many ranks it had.

    path: None when nothing was trained (--check_data).
    """

    path: Path | None
    metrics: dict[str, float]
    log_history: list[dict[str, Any]] = field(repr=False)
    global_step: int
    num_processes: int

    @property
    def training_loss(self) -> float | None:
        """Mean loss of all steps."""
        return self.metrics.get("train_loss")

    def plot(self) -> LossPlot:
        """Loss, learning rate and gradient norm; the last expression of a cell is shown."""
        return LossPlot(self.log_history)

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{escape(name)}</td><td>{escape(text)}</td></tr>" for name, text in self._facts()
        )
        return f"<table>{rows}</table>"

    def __str__(self) -> str:
        return "\n".join(f"{name:<10} {text}" for name, text in self._facts())

    def _facts(self) -> Iterable[tuple[str, str]]:
        yield "model", str(self.path)
        ranks = f"{self.num_processes} rank{'s' if self.num_processes > 1 else ''}"
        yield "steps", f"{self.global_step:,} on {ranks}"
        if "train_runtime" in self.metrics:
            yield "time", duration_text(self.metrics["train_runtime"])
        if self.training_loss is not None:
            yield "mean loss", f"{self.training_loss:.4f}"
        for name, curve in LossHistory.of(self.log_history).evaluations.items():
            if (best := curve.best()) is not None:
                yield f"{name} loss", f"{best[1]:.4f} at step {best[0]:,}"
