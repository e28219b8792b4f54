"""The course of a run, put together from the events of rank 0."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from fastsft.reporting.loss_history import LossHistory
from fastsft.reporting.status import Status

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
