"""Formats text for consoles: durations, columns and log entries."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Iterable
from typing import Any

from fastsft.runtime.terminal import has_colour, visible

_MINUTE, _HOUR, _DAY = 60, 3600, 86400
_LABEL_WIDTH = 12
_WIDTH_WITHOUT_TERMINAL = 110
_BOLD, _PLAIN = "\x1b[1m", "\x1b[0m"


def duration_text(seconds: float) -> str:
    """Return a duration as text, such as 12 s, 3 min 20 s, 2 h 05 min or 3 d 4 h."""
    left = max(round(seconds), 0)
    if left < _MINUTE:
        return f"{left} s"
    if left < _HOUR:
        return f"{left // _MINUTE} min {left % _MINUTE:02d} s"
    if left < _DAY:
        return f"{left // _HOUR} h {left % _HOUR // _MINUTE:02d} min"
    return f"{left // _DAY} d {left % _DAY // _HOUR} h"


def page_width() -> int:
    """Return the column count: COLUMNS if set, else the terminal's width, else 110."""
    if sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit():
        return shutil.get_terminal_size((_WIDTH_WITHOUT_TERMINAL, 24)).columns
    return _WIDTH_WITHOUT_TERMINAL


def columns(rows: Iterable[tuple[str, str]], width: int | None = None) -> str:
    """Return a table with a row for each (label, text); long texts are wrapped.

    Labels are bold if standard output is a terminal with colours.
    """
    text_width = max((width or page_width()) - _LABEL_WIDTH, 20)
    bold = has_colour(sys.stdout)
    lines = []
    for label, text in rows:
        name = f"{label:<{_LABEL_WIDTH}}"
        for number, part in enumerate(_wrapped(visible(text), text_width)):
            head = " " * _LABEL_WIDTH if number else f"{_BOLD}{name}{_PLAIN}" if bold and label else name
            lines.append(f"{head}{part}".rstrip())
    return "\n".join(lines)


def _wrapped(text: str, width: int) -> list[str]:
    """Wrap the text between words. Long words are not broken, so that paths can be copied."""
    # two spaces are a sign of a table, whose columns must stay aligned
    if len(text) <= width or "  " in text:
        return [text]
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False) or [""]


def console_line(logs: dict[str, Any]) -> str:
    """Return a log entry in the form of transformers 4.x: a dictionary with rounded loss and epoch."""
    places = {"loss": 4, "epoch": 2}
    shown = {
        name: round(value, places[name]) if name in places and value is not None else value
        for name, value in logs.items()
        if name != "total_flos"
    }
    return str(shown)


def readable_line(logs: dict[str, Any], step: int, width: int) -> str:
    """Return a log entry as rounded text, wrapped to `width` terminal columns."""
    texts = [f"{name} {_short(name, value)}" for name, value in logs.items() if name != "total_flos"]
    line = f"step {step}: {', '.join(texts)}"
    return textwrap.fill(line, max(width - 1, 20), subsequent_indent="    ", break_long_words=False)


def _short(name: str, value: object) -> str:
    if not isinstance(value, float):
        return str(value)
    if name == "epoch":
        return f"{value:.2f}"
    return f"{value:.4f}" if name.endswith("loss") else f"{value:.4g}"
