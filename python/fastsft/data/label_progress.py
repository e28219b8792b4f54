"""Progress while conversations are labelled: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from typing import Any, TextIO

from tqdm import tqdm  # type: ignore[import-untyped]

from fastsft.runtime.timeouts import note_progress

_SILENT_SECONDS = 2.0  # a short job says nothing
_SECONDS_BETWEEN_LINES = 10.0
_SECONDS_BETWEEN_MOVES = 0.1


class LabelProgress:
    """Called with bytes and records done so far: records/s, MB/s and the time left.

    total_bytes: of all files, or None when that is not known. shown: False says nothing at all.
    """

    def __init__(self, total_bytes: int | None, *, shown: bool = True, stream: TextIO | None = None) -> None:
        self._total = total_bytes
        self._shown = shown
        self._stream = stream or sys.stderr
        self._bar: tqdm[Any] | None = None
        self._started = self._last = time.monotonic()
        self._said = False
        self._done = (0, 0)

    def __call__(self, num_bytes: int, num_records: int) -> None:
        if (num_bytes, num_records) != self._done:
            self._done = (num_bytes, num_records)
            note_progress()
        now = time.monotonic()
        passed = now - self._started
        if not self._shown or passed < _SILENT_SECONDS:
            return
        if self._stream.isatty():
            if now - self._last >= _SECONDS_BETWEEN_MOVES:
                self._move_bar(num_bytes, num_records, passed)
                self._last = now
        elif not self._said or now - self._last >= _SECONDS_BETWEEN_LINES:
            with contextlib.suppress(OSError, ValueError):
                line = self.line(num_bytes, num_records, passed)
                print(f"labelling: {line}", file=self._stream, flush=True)
            self._said, self._last = True, now

    def line(self, num_bytes: int, num_records: int, passed: float) -> str:
        """The plain line after `passed` seconds."""
        speed = num_bytes / max(passed, 1e-9)
        rate = num_records / max(passed, 1e-9)
        text = f"{num_records:,} records, {rate:,.0f} records/s, {speed / 1e6:.1f} MB/s"
        if self._total is None:
            return text
        left = max(self._total - num_bytes, 0) / max(speed, 1e-9)
        return f"{text}, {100 * num_bytes / max(self._total, 1):.0f} %, {left:.0f} s left"

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def _move_bar(self, num_bytes: int, num_records: int, passed: float) -> None:
        if self._bar is None:
            self._bar = tqdm(
                total=self._total,
                desc="labelling",
                unit="B",
                unit_scale=True,
                file=self._stream,
                dynamic_ncols=True,
                leave=False,
            )
            self._bar.start_t -= passed
        self._bar.set_postfix_str(f"{num_records / passed:,.0f} records/s", refresh=False)
        self._bar.n = num_bytes
        self._bar.refresh()
