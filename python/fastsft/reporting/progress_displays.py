"""Displays progress on the console: a tqdm bar on a terminal, lines elsewhere."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from tqdm import tqdm  # type: ignore[import-untyped]

from fastsft.callbacks.samples import SAMPLES
from fastsft.planning.devices import size_text
from fastsft.reporting.console_text import console_line, duration_text, readable_line
from fastsft.reporting.samples import sample_lines
from fastsft.reporting.status import Display, Run, Status, status_text
from fastsft.runtime.terminal import has_colour, say, terminal_width, visible

if TYPE_CHECKING:
    from typing import TextIO

_DEFAULT_WIDTH = 80
_NARROW = 34  # on terminals with fewer columns, text replaces the bar
_LEAST_BAR = 12
_SECONDS_BETWEEN_PHASE_LINES = 30.0


class ProgressBar(Display):
    """A tqdm bar on the terminal `stream`; log entries go to standard output, above the bar."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._bar: tqdm[Any] | None = None

    def begin(self, status: Status, run: Run) -> None:
        colour = "green" if has_colour(self._stream) else None
        self._bar = tqdm(
            total=status.max_steps, initial=status.step, file=self._stream, dynamic_ncols=True, colour=colour,
            mininterval=0, miniters=0,
        )  # fmt: skip
        self.show(status)

    def show(self, status: Status) -> None:
        if self._bar is not None:
            self._bar.n = status.step
            self._bar.bar_format = bar_format(status, self._bar.format_dict["ncols"] or _DEFAULT_WIDTH)
            self._bar.refresh()

    def log(self, logs: dict[str, Any], status: Status) -> None:
        """Print a log entry: wrapped on a terminal, otherwise in transformers' form."""
        if self._bar is not None and SAMPLES in logs:
            self._bar.write(sample_lines(logs[SAMPLES], status.step))
        elif self._bar is not None:
            width = terminal_width(sys.stdout)
            self._bar.write(console_line(logs) if width is None else readable_line(logs, status.step, width))

    def note(self, text: str, status: Status) -> None:
        """Print only if no bar is shown; a bar shows the phase itself."""
        if self._bar is None:
            print(text, file=self._stream, flush=True)

    def end(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def bar_format(status: Status, width: int) -> str:
    """Return tqdm's format string for a line of at most `width` - 1 columns."""
    count = f"{status.step}/{status.max_steps}"
    if width < _NARROW:
        line = status.phase or f"{count} {status_text(status, width - len(count) - 2)}"
        return line[: width - 1].replace("{", "{{").replace("}", "}}")
    head = f"{status.phase} " if status.phase else ""
    fixed = len(head) + len("100%|") + len(f"| {count} ") + 1
    text = status_text(status, max(width - fixed - _LEAST_BAR, 0))
    return f"{head}{{percentage:3.0f}}%|{{bar}}| {count} {text}"


class ProgressLines(Display):
    """Progress as lines on standard output:

    a log entry that scripts can parse, then `#`, time, step and speed.
    """

    def __init__(self) -> None:
        self._printed_at = time.monotonic()

    def show(self, status: Status) -> None:
        """Print nothing for a step; in a long phase, print its progress every 30 seconds."""
        if status.phase and time.monotonic() - self._printed_at > _SECONDS_BETWEEN_PHASE_LINES:
            self.note(status.phase, status)

    def log(self, logs: dict[str, Any], status: Status) -> None:
        if SAMPLES in logs:
            say(sample_lines(logs[SAMPLES], status.step))
            return
        facts = [_position(status), *(_speed(status) if "loss" in logs else [])]
        say(f"{console_line(logs)}  # {', '.join(facts)}")

    def note(self, text: str, status: Status) -> None:
        self._printed_at = time.monotonic()
        say(f"# {_position(status)}, {visible(text)}")


def _position(status: Status) -> str:
    # max_steps is 0 outside `train`
    step = f" step {status.step}/{status.max_steps}" if status.max_steps else ""
    return f"{time.strftime('%Y-%m-%d %H:%M:%S')}{step}"


def _speed(status: Status) -> list[str]:
    facts = [f"{status.tokens_per_second:,.0f} tokens/s"]
    if status.utilization is not None:
        facts.append(f"MFU {status.utilization:.1%}")
    if status.peak_memory is not None:
        facts.append(f"peak {size_text(status.peak_memory)}")
    if status.seconds_left is not None:
        facts.append(f"{duration_text(status.seconds_left)} left")
    return facts
