"""Progress of a run, in one object, and as text of any width."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from fastsft.planning.device_memory import size_text
from fastsft.reporting.console_text import duration_text


@dataclass(frozen=True)
class Run:
    """The part that does not change: where it writes, and the log_history that it resumes with."""

    output_dir: str
    log_history: list[dict[str, Any]]


@dataclass
class Status:
    """Numbers of the newest step. None: not known yet, or not known here (MFU on a CPU).

    tokens_per_second: of all ranks, without padding. utilization: MFU, 0 to 1. peak_memory: bytes of rank 0,
    on its GPU if it has one. phase: what goes on between steps, `evaluating 3/12`, else "".
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

    def to_json(self) -> dict[str, Any]:
        """As a dictionary of plain values."""
        return asdict(self)


# Names in the order of reading; the number says how long a field is kept when room gets scarce.
_FIELDS = (
    ("epoch", 6), ("loss", 2), ("grad_norm", 5), ("learning_rate", 4), ("tokens_per_second", 3),
    ("utilization", 7), ("peak_memory", 8), ("seconds_left", 1),
)  # fmt: skip


def status_text(status: Status, width: int) -> str:
    """The fields that fit into `width` characters, the most important ones kept; at least one."""
    texts = {name: text for name, _ in _FIELDS if (text := _text(name, getattr(status, name)))}
    by_rank = sorted((rank, name) for name, rank in _FIELDS if name in texts)
    while len(by_rank) > 1 and sum(len(texts[name]) + 2 for _, name in by_rank) - 2 > width:
        by_rank.pop()
    kept = {name for _, name in by_rank}
    return ", ".join(text for name, text in texts.items() if name in kept)


def _text(name: str, value: float | None) -> str:
    if value is None or (name == "tokens_per_second" and not value):
        return ""
    match name:
        case "epoch":
            return f"epoch {value:.2f}"
        case "loss":
            return f"loss {value:.4g}"
        case "grad_norm":
            return f"norm {value:.3g}"
        case "learning_rate":
            return f"lr {value:.3g}"
        case "tokens_per_second":
            return f"{value:,.0f} tok/s"
        case "utilization":
            return f"MFU {value:.1%}"
        case "peak_memory":
            return size_text(int(value))
    return f"{duration_text(value)} left"


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


_SIGNAL_BASE = 128  # exit status of a run that a signal stopped: 128 + its number


def stop_reason(error: BaseException) -> str:
    """The name of a signal, else the kind of error and the first line of its message."""
    if isinstance(error, SystemExit) and isinstance(error.code, int) and error.code > _SIGNAL_BASE:
        return signal_name(error.code - _SIGNAL_BASE)
    first = (str(error).splitlines() or [""])[0]
    return f"{type(error).__name__}{': ' if first else ''}{first}"


def signal_name(number: int) -> str:
    """SIGTERM for 15."""
    known = {int(each): each.name for each in signal.Signals}
    return known.get(number, f"signal {number}")
