"""The bar of a terminal: moves with every step, says what goes on, never wraps."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Any

from tqdm import tqdm  # type: ignore[import-untyped]

from fastsft.planning.device_memory import size_text
from fastsft.reporting.console_text import console_line, duration_text, readable_line
from fastsft.reporting.status import Run, Status, status_text
from fastsft.runtime.standard_streams import say
from fastsft.runtime.terminal_text import has_colour, visible

if TYPE_CHECKING:
    from typing import TextIO

_FALLBACK_WIDTH = 80
_NARROW = 34  # columns below which there is no bar, only its text
_LEAST_BAR = 12


class ProgressBar:
    """Draws a Status on `stream`, a terminal."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._bar: tqdm[Any] | None = None

    def begin(self, status: Status, run: Run) -> None:
        """Draw the bar, at the step that a resumed run begins with."""
        colour = "green" if has_colour(self._stream) else None
        self._bar = tqdm(
            total=status.max_steps, initial=status.step, file=self._stream, dynamic_ncols=True, colour=colour,
            mininterval=0, miniters=0,
        )  # fmt: skip
        self.show(status)

    def show(self, status: Status) -> None:
        """Draw `status` in place of the last one."""
        if self._bar is None:
            return
        self._bar.n = status.step
        self._bar.bar_format = bar_format(status, terminal_width(self._stream))
        self._bar.refresh()

    def log(self, logs: dict[str, Any], status: Status) -> None:
        """A line above the bar, on standard output; in transformers' form where a file takes it."""
        if self._bar is None:
            return
        if sys.stdout.isatty():
            self._bar.write(readable_line(logs, status.step, terminal_width(sys.stdout)))
        else:
            self._bar.write(console_line(logs))

    def say(self, text: str, status: Status) -> None:
        """Show what goes on in the bar; after its end, as a line."""
        if self._bar is None:
            print(text, file=self._stream, flush=True)

    def end(self) -> None:
        """Leave the bar as it is."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def terminal_width(stream: TextIO) -> int:
    """Columns of the terminal of `stream`."""
    try:
        columns = os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError, AttributeError):
        columns = int(os.environ.get("COLUMNS") or _FALLBACK_WIDTH)
    return columns or _FALLBACK_WIDTH


def bar_format(status: Status, width: int) -> str:
    """tqdm's format of one line of at most `width` - 1 columns."""
    count = f"{status.step}/{status.max_steps}"
    if width < _NARROW:
        line = status.phase or f"{count} {status_text(status, width - len(count) - 2)}"
        return line[: width - 1].replace("{", "{{").replace("}", "}}")
    head = f"{status.phase} " if status.phase else ""
    fixed = len(head) + len("100%|") + len(f"| {count} ") + 1
    text = status_text(status, max(width - fixed - _LEAST_BAR, 0))
    return f"{head}{{percentage:3.0f}}%|{{bar}}| {count} {text}"


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
