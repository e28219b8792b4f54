"""Rows of a label and a text, wrapped to the width of the terminal."""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable

from fastsft.runtime.terminal import has_colour, visible

_LABEL_WIDTH = 12
_WIDTH_WITHOUT_TERMINAL = 110
_BOLD, _PLAIN = "\x1b[1m", "\x1b[0m"


def page_width() -> int:
    """COLUMNS, else those of the terminal of standard output, else 110."""
    if sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit():
        return shutil.get_terminal_size((_WIDTH_WITHOUT_TERMINAL, 24)).columns
    return _WIDTH_WITHOUT_TERMINAL


def columns(rows: Iterable[tuple[str, str]], width: int | None = None) -> str:
    """One row a pair; a text that is longer than the page goes on below itself. Labels bold on a terminal."""
    room = max((width or page_width()) - _LABEL_WIDTH, 20)
    bold = has_colour(sys.stdout)
    lines = []
    for label, text in rows:
        name = f"{label:<{_LABEL_WIDTH}}"
        for number, part in enumerate(_wrapped(visible(text), room)):
            head = " " * _LABEL_WIDTH if number else f"{_BOLD}{name}{_PLAIN}" if bold and label else name
            lines.append(f"{head}{part}".rstrip())
    return "\n".join(lines)


def _wrapped(text: str, room: int) -> list[str]:
    """Long words, paths for example, stay whole: they are there to be copied."""
    if len(text) <= room or re.search(r"  ", text):  # a table keeps its columns
        return [text]
    return textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False) or [""]
