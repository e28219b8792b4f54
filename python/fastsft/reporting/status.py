"""Status of a run: as text, as events for a parent process, and the reason for an early end."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from fastsft.planning.devices import size_text
from fastsft.reporting.console_text import duration_text

EVENTS_VARIABLE = "FASTSFT_EVENTS_FD"
CONSOLE_VARIABLE = "FASTSFT_CONSOLE"  # "none": the reader of the events displays them
_SIGNAL_BASE = 128  # exit status of a run that a signal stopped: 128 + its number


@dataclass(frozen=True)
class Run:
    """Constants of a run: output directory, and the log_history with which the run resumes."""

    output_dir: str
    log_history: list[dict[str, Any]]


@dataclass
class Status:
    """Numbers from the newest step. None: not known yet, or not known on this device (MFU on a CPU).

    tokens_per_second: over all ranks, without padding. utilization: MFU, 0 to 1. peak_memory [bytes]: on rank
    0, on its GPU if there is a GPU. phase: work between steps, such as `evaluating 3/12`, else "".
    """

    step: int = 0
    max_steps: int = 0
    epoch: float | None = None
    loss: float | None = None
    grad_norm: float | None = None
    learning_rate: float | None = None
    tokens_per_second: float = 0.0
    utilization: float | None = None
    peak_memory: int | None = None
    seconds_left: float | None = None
    phase: str = ""


# Fields in reading order: name, priority when space is scarce (1 stays longest), text.
_FIELDS: tuple[tuple[str, int, Callable[[Any], str]], ...] = (
    ("epoch", 6, "epoch {:.2f}".format),
    ("loss", 2, "loss {:.4g}".format),
    ("grad_norm", 5, "norm {:.3g}".format),
    ("learning_rate", 4, "lr {:.3g}".format),
    ("tokens_per_second", 3, lambda rate: f"{rate:,.0f} tok/s" if rate else ""),
    ("utilization", 7, "MFU {:.1%}".format),
    ("peak_memory", 8, size_text),
    ("seconds_left", 1, lambda seconds: f"{duration_text(seconds)} left"),
)


def status_text(status: Status, width: int) -> str:
    """Return the most important fields that fit into `width` characters; at least a field."""
    values = [(priority, text, getattr(status, name)) for name, priority, text in _FIELDS]
    shown = [(priority, text(value)) for priority, text, value in values if value is not None and text(value)]
    while len(shown) > 1 and len(", ".join(text for _, text in shown)) > width:
        shown.remove(max(shown))
    return ", ".join(text for _, text in shown)


class Display:
    """Base class for progress displays; each method handles an event."""

    def begin(self, status: Status, run: Run) -> None:
        """Training begins at `status.step`."""

    def show(self, status: Status) -> None:
        """A step ended, or a phase moved on."""

    def log(self, logs: dict[str, Any], status: Status) -> None:
        """An entry was added to log_history."""

    def note(self, text: str, status: Status) -> None:
        """A phase begins, which `text` names."""

    def end(self) -> None:
        """Training ended, completed or not."""


class ProgressEvents(Display):
    """Display that writes JSON lines with `event` begin, step, log, note or end to a file descriptor.

    If the reader has closed the pipe, events are dropped.
    """

    def __init__(self, fd: int) -> None:
        self._fd: int | None = fd

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> ProgressEvents | None:
        """Return events for the pipe that FASTSFT_EVENTS_FD names; None if the variable is not set."""
        fd = environ.get(EVENTS_VARIABLE, "")
        return cls(int(fd)) if fd.isdigit() else None

    def begin(self, status: Status, run: Run) -> None:
        self._send("begin", status=asdict(status), output_dir=run.output_dir, log_history=run.log_history)

    def show(self, status: Status) -> None:
        self._send("step", status=asdict(status))

    def log(self, logs: dict[str, Any], status: Status) -> None:
        self._send("log", entry={**logs, "step": status.step}, status=asdict(status))

    def note(self, text: str, status: Status) -> None:
        self._send("note", text=text)

    def end(self) -> None:
        self._send("end")

    def _send(self, event: str, **values: object) -> None:
        """Write a line; NaN and infinity become words that Python's json reads."""
        if self._fd is None:
            return
        data = (json.dumps({"event": event, **values}) + "\n").encode()
        try:
            while data:
                data = data[os.write(self._fd, data) :]
        except OSError:
            with suppress(OSError):
                os.close(self._fd)
            self._fd = None


def stop_reason(error: BaseException) -> str:
    """Return the signal's name, else the error's type and the first line of its message."""
    if isinstance(error, SystemExit) and isinstance(error.code, int) and error.code > _SIGNAL_BASE:
        return signal_name(error.code - _SIGNAL_BASE)
    first = (str(error).splitlines() or [""])[0]
    return f"{type(error).__name__}{': ' if first else ''}{first}"


def signal_name(number: int) -> str:
    """Return for example SIGTERM for 15."""
    names = {int(item): item.name for item in signal.Signals}
    return names.get(number, f"signal {number}")
