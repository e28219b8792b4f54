"""A run as the cell of a notebook shows it, or as text elsewhere."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, fields
from html import escape
from typing import TYPE_CHECKING, Any, Protocol

from fastsft.reporting.loss_history import LossHistory, drawing
from fastsft.reporting.status import Status, status_text
from fastsft.runtime.place import is_notebook

if TYPE_CHECKING:
    from IPython.display import DisplayHandle

_SECONDS_BETWEEN_DRAWINGS = 0.5
_TEXT_WIDTH = 160


class View(Protocol):
    """Display of the course of a run. is_silent: the ranks need not print it."""

    is_silent: bool

    def show(self, course: Course) -> None: ...
    def close(self, course: Course) -> None: ...


class TextView:
    """Leaves it to the lines that rank 0 prints."""

    is_silent = False

    def show(self, course: Course) -> None:
        """Nothing."""

    def close(self, course: Course) -> None:
        """Nothing."""


class NotebookView:
    """One output of the cell that is drawn again: a bar, the newest numbers, the loss."""

    is_silent = True

    def __init__(self) -> None:
        self._handle: DisplayHandle | None = None
        self._drawn_at = 0.0

    def show(self, course: Course) -> None:
        """Draw, twice a second at most; not before the first step, while the start page is still printed."""
        if course.has_moved and time.monotonic() - self._drawn_at >= _SECONDS_BETWEEN_DRAWINGS:
            self._draw(course)

    def close(self, course: Course) -> None:
        """Draw the end."""
        if course.output_dir is not None:
            self._draw(course)

    def _draw(self, course: Course) -> None:
        from IPython.display import HTML, display

        picture = HTML(course_html(course))
        if self._handle is None:
            self._handle = display(picture, display_id=True)
        else:
            self._handle.update(picture)
        self._drawn_at = time.monotonic()


def course_html(course: Course) -> str:
    """Bar, numbers and curves; fits light and dark notebooks."""
    status = course.status
    bar = f'value="{status.step}" max="{max(status.max_steps, 1)}"'
    return (
        f'<div><progress {bar} style="width:100%"></progress>'
        f'<div style="font-variant-numeric:tabular-nums">{escape(course_text(course))}</div>'
        f"{drawing(course.history(), status.max_steps, only_loss=True)}</div>"
    )


def course_text(course: Course) -> str:
    """The current phase, the step, and the newest numbers."""
    status = course.status
    parts = [status.phase, f"step {status.step:,} of {status.max_steps:,}", status_text(status, _TEXT_WIDTH)]
    return ", ".join(part for part in parts if part)


def view_for(plot: bool) -> View:
    """A notebook's own view when the process is a kernel and `plot` is wanted, else text."""
    return NotebookView() if plot and is_notebook() else TextView()


_STATUS_NAMES = {item.name for item in fields(Status)}


@dataclass
class Course:
    """Status and logs so far. output_dir: None until the run has begun. has_moved: a step is done."""

    status: Status = field(default_factory=Status)
    log_history: list[dict[str, Any]] = field(default_factory=list)
    output_dir: str | None = None
    has_moved: bool = False

    def take(self, event: dict[str, Any]) -> None:
        """One event of progress_events."""
        if "status" in event:
            known = {name: value for name, value in event["status"].items() if name in _STATUS_NAMES}
            self.status = Status(**known)
        match event["event"]:
            case "begin":
                self.output_dir, self.log_history = event["output_dir"], event["log_history"]
            case "log":
                self.log_history.append(event["entry"])
            case "step":
                self.has_moved = True

    def history(self) -> LossHistory:
        """The curves."""
        return LossHistory.of(self.log_history)

    def metrics(self) -> dict[str, float]:
        """Of the log that ends a run; empty before."""
        last: dict[str, Any] = next(
            (entry for entry in reversed(self.log_history) if "train_runtime" in entry), {}
        )
        return {name: value for name, value in last.items() if name != "step"}
