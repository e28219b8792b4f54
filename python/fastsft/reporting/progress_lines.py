"""Progress without a terminal: one line a log, and one when something other than steps begins."""

from __future__ import annotations

import time
from typing import Any

from fastsft.planning.devices import size_text
from fastsft.reporting.console_line import console_line
from fastsft.reporting.durations import duration_text
from fastsft.reporting.status import Run, Status
from fastsft.runtime.terminal import say, visible

_SECONDS_BETWEEN_PHASE_LINES = 30.0


class ProgressLines:
    """Prints on standard output: for scripts what is before `#` on a line, for people what follows."""

    def __init__(self) -> None:
        self._said_at = time.monotonic()

    def begin(self, status: Status, run: Run) -> None:
        """Nothing: the start page has been printed."""

    def show(self, status: Status) -> None:
        """Steps are silent; a long evaluation or save says how far it is, twice a minute."""
        if status.phase and time.monotonic() - self._said_at > _SECONDS_BETWEEN_PHASE_LINES:
            self.say(status.phase, status)

    def log(self, logs: dict[str, Any], status: Status) -> None:
        """The log, and where the run is."""
        where = _place(status)
        if "loss" in logs:
            where = ", ".join([where, *_speed(status)])
        say(f"{console_line(logs)}  # {where}")

    def say(self, text: str, status: Status) -> None:
        """Say what goes on now."""
        self._said_at = time.monotonic()
        say(f"# {_place(status)}, {visible(text)}")

    def end(self) -> None:
        """Nothing to close."""


def _place(status: Status) -> str:
    step = f" step {status.step}/{status.max_steps}" if status.max_steps else ""  # none outside of `train`
    return f"{time.strftime('%Y-%m-%d %H:%M:%S')}{step}"


def _speed(status: Status) -> list[str]:
    known = [f"{status.tokens_per_second:,.0f} tokens/s"]
    if status.utilization is not None:
        known.append(f"MFU {status.utilization:.1%}")
    if status.peak_memory is not None:
        known.append(f"peak {size_text(status.peak_memory)}")
    if status.seconds_left is not None:
        known.append(f"{duration_text(status.seconds_left)} left")
    return known
