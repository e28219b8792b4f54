"""Progress for the process that started this one: one JSON object a line, into a pipe."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from typing import Any

from fastsft.reporting.status import Run, Status

EVENTS_VARIABLE = "FASTSFT_EVENTS_FD"
CONSOLE_VARIABLE = "FASTSFT_CONSOLE"  # "none": whoever reads the events shows them


class ProgressEvents:
    """Writes to the file descriptor `fd`: objects with `event` begin, step, log, note or end.

    A reader that went away is no fault: the run goes on.
    """

    def __init__(self, fd: int) -> None:
        self._fd: int | None = fd

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> ProgressEvents | None:
        """For the pipe that FASTSFT_EVENTS_FD names; None without one."""
        fd = environ.get(EVENTS_VARIABLE, "")
        return cls(int(fd)) if fd.isdigit() else None

    def begin(self, status: Status, run: Run) -> None:
        """The run begins, or is resumed, at status.step."""
        self.send("begin", status=status.to_json(), output_dir=run.output_dir, log_history=run.log_history)

    def show(self, status: Status) -> None:
        """A step has ended, or a phase moved on."""
        self.send("step", status=status.to_json())

    def log(self, logs: dict[str, Any], status: Status) -> None:
        """An entry of log_history."""
        self.send("log", entry={**logs, "step": status.step}, status=status.to_json())

    def say(self, text: str, status: Status) -> None:
        """Say what goes on now."""
        self.send("note", text=text)

    def end(self) -> None:
        """The run has ended, well or not."""
        self.send("end")

    def send(self, event: str, **values: object) -> None:
        """One object; NaN and infinity are words that Python's JSON reads."""
        if self._fd is None:
            return
        try:
            _write_all(self._fd, (json.dumps({"event": event, **values}) + "\n").encode())
        except OSError:
            with contextlib.suppress(OSError):
                os.close(self._fd)
            self._fd = None


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]
