"""The status that a run reports as text or as events, and the reason for an early end."""

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
CONSOLE_VARIABLE = "FASTSFT_CONSOLE"  # "none": print nothing, because the parent process shows the events
_SIGNAL_BASE = 128  # a run that a signal stopped exits with 128 + the signal's number


@dataclass(frozen=True)
class Run:
    """Constants of a run: its output directory, and the log_history at its start (not empty if resumed)."""

    output_dir: str
    log_history: list[dict[str, Any]]


@dataclass
class Status:
    """The numbers of the newest step. None: not known yet, or not known on this device (MFU on a CPU).

    tokens_per_second: over all ranks, without padding. utilization: MFU, from 0 to 1. peak_memory: bytes on
    rank 0's device. phase: the current work between steps, such as `evaluating 3/12`; "" during steps.
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


# The fields in reading order: (name, priority, text). If space is short, the field with the highest priority
# number is left out first.
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
    """Return the most important fields that fit into `width` characters, but at least a single field."""
    values = [(priority, text, getattr(status, name)) for name, priority, text in _FIELDS]
    shown = [(priority, text(value)) for priority, text, value in values if value is not None and text(value)]
    while len(shown) > 1 and len(", ".join(text for _, text in shown)) > width:
        shown.remove(max(shown))
    return ", ".join(text for _, text in shown)


class Display:
    """Base class for progress displays; each method handles one event."""

    def begin(self, status: Status, run: Run) -> None:
        """Handle the start of training, at `status.step`."""

    def show(self, status: Status) -> None:
        """Handle a step's end, or progress in a phase."""

    def log(self, logs: dict[str, Any], status: Status) -> None:
        """Handle a new entry of log_history."""

    def note(self, text: str, status: Status) -> None:
        """Handle the start of the phase that `text` names."""

    def end(self) -> None:
        """Handle the end of training, completed or not."""


class ProgressEvents(Display):
    """Display that writes events as JSON lines to a file descriptor.

    The key `event` is begin, step, log, note or end. If the reader has closed the pipe, events are dropped.
    """

    def __init__(self, fd: int) -> None:
        self._fd: int | None = fd

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> ProgressEvents | None:
        """Return a display for the file descriptor in FASTSFT_EVENTS_FD; None if the variable is not set."""
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
        """Write an event as one line; NaN and infinity are written as Python's json reads them."""
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
    """Return the name of the signal that stopped the run, or the error's type and first line."""
    if isinstance(error, SystemExit) and isinstance(error.code, int) and error.code > _SIGNAL_BASE:
        return signal_name(error.code - _SIGNAL_BASE)
    first = (str(error).splitlines() or [""])[0]
    return f"{type(error).__name__}{': ' if first else ''}{first}"


def signal_name(number: int) -> str:
    """Return a signal's name, such as SIGTERM for 15."""
    names = {int(item): item.name for item in signal.Signals}
    return names.get(number, f"signal {number}")
