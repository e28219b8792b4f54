"""Shows the state and the result of a run in a notebook cell or as text."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastsft.callbacks.samples import SAMPLES
from fastsft.reporting.console_text import duration_text
from fastsft.reporting.loss_history import LossHistory, drawing
from fastsft.reporting.samples import samples_html
from fastsft.reporting.status import Status, status_text
from fastsft.runtime.interactive import is_notebook

if TYPE_CHECKING:
    from IPython.display import DisplayHandle

_SECONDS_BETWEEN_DRAWINGS = 0.5
_TEXT_WIDTH = 160
_STATUS_NAMES = {item.name for item in fields(Status)}


@dataclass
class RunState:
    """State of a run. output_dir: None until the run has begun. has_step: True once a step has ended."""

    status: Status = field(default_factory=Status)
    log_history: list[dict[str, Any]] = field(default_factory=list)
    output_dir: str | None = None
    has_step: bool = False

    def apply(self, event: dict[str, Any]) -> None:
        """Update the state from an event that `ProgressEvents` sent."""
        if "status" in event:
            values = {name: value for name, value in event["status"].items() if name in _STATUS_NAMES}
            self.status = Status(**values)
        match event["event"]:
            case "begin":
                self.output_dir, self.log_history = event["output_dir"], event["log_history"]
            case "log":
                self.log_history.append(event["entry"])
            case "step":
                self.has_step = True

    def history(self) -> LossHistory:
        """Return the loss curves so far."""
        return LossHistory.of(self.log_history)

    def metrics(self) -> dict[str, float]:
        """Return the metrics of the run's last log entry; {} before the run has ended."""
        last: dict[str, Any] = next(
            (entry for entry in reversed(self.log_history) if "train_runtime" in entry), {}
        )
        return {name: value for name, value in last.items() if name != "step"}


class View:
    """Base class for views in the process that started a run.

    The base class shows nothing, because rank 0 prints lines.

    is_silent: True if the ranks must not print.
    """

    is_silent = False

    def show(self, run: RunState) -> None:
        """Show the state after an event."""

    def close(self, run: RunState) -> None:
        """Show the state at the end."""


class NotebookView(View):
    """View that redraws the output of a notebook cell: a bar, the newest numbers and the loss curve."""

    is_silent = True

    def __init__(self) -> None:
        self._handle: DisplayHandle | None = None
        self._drawn_at = 0.0

    def show(self, run: RunState) -> None:
        """Draw the state, at most twice a second.

        Before the first step nothing is drawn, because the start page is still being printed.
        """
        if run.has_step and time.monotonic() - self._drawn_at >= _SECONDS_BETWEEN_DRAWINGS:
            self._draw(run)

    def close(self, run: RunState) -> None:
        if run.output_dir is not None:
            self._draw(run)

    def _draw(self, run: RunState) -> None:
        from IPython.display import HTML, display

        picture = HTML(run_html(run))
        if self._handle is None:
            self._handle = display(picture, display_id=True)
        else:
            self._handle.update(picture)
        self._drawn_at = time.monotonic()


def run_html(run: RunState) -> str:
    """Return a bar, the newest numbers and the loss curve as HTML for light and dark notebooks."""
    status = run.status
    bar = f'value="{status.step}" max="{max(status.max_steps, 1)}"'
    return (
        f'<div><progress {bar} style="width:100%"></progress>'
        f'<div style="font-variant-numeric:tabular-nums">{escape(run_text(run))}</div>'
        f"{drawing(run.history(), status.max_steps, only_loss=True)}{samples_html(run.log_history, 2)}</div>"
    )


def run_text(run: RunState) -> str:
    """Return the phase, the step and the newest numbers as text."""
    status = run.status
    parts = [status.phase, f"step {status.step:,} of {status.max_steps:,}", status_text(status, _TEXT_WIDTH)]
    return ", ".join(part for part in parts if part)


def view_for(plot: bool) -> View:
    """Return a NotebookView if `plot` is True in a notebook, else a view that shows nothing."""
    return NotebookView() if plot and is_notebook() else View()


class LossPlot:
    """A run's curves, which a notebook shows as a drawing. svg: an SVG element for each panel."""

    def __init__(self, log_history: Iterable[Mapping[str, Any]]) -> None:
        self.history = LossHistory.of(log_history)
        self.svg = drawing(self.history)

    def _repr_html_(self) -> str:
        return self.svg or "nothing was logged"


@dataclass(frozen=True)
class TrainingResult:
    """The result of a finished run.

    path: the output directory; None if nothing was trained (--check_data). metrics: metrics of the last log
    entry.
    """

    path: Path | None
    metrics: dict[str, float]
    log_history: list[dict[str, Any]] = field(repr=False)
    global_step: int
    num_processes: int

    @property
    def training_loss(self) -> float | None:
        """Mean loss over all steps; None if no step was trained."""
        return self.metrics.get("train_loss")

    @property
    def samples(self) -> list[dict[str, str]]:
        """Prompts and replies of the last evaluation (--sample_prompts); [] without."""
        return next((entry[SAMPLES] for entry in reversed(self.log_history) if SAMPLES in entry), [])

    def plot(self) -> LossPlot:
        """Return the curves of loss, learning rate and gradient norm, which a notebook shows."""
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
