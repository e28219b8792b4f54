"""Text of data on a terminal: nothing in it can move the cursor, and colours where they are wanted."""

from __future__ import annotations

import os
import shutil
import textwrap
import unicodedata
from typing import TextIO

_JOINER = "\u200d"  # holds emoji together


def visible(text: str, *, keep: str = "\n\t", escape: str = "") -> str:
    """`text` with control, format and unassigned characters as escapes (`\\x1b`), but those of `keep`.

    escape: further characters to write as escapes.
    """
    return "".join(c if c in keep or (c not in escape and _is_harmless(c)) else _escaped(c) for c in text)


def one_line(text: str) -> str:
    """As `visible`, line breaks and tabs escaped, too."""
    return visible(text, keep="")


def fitted(text: str, stream: TextIO) -> str:
    """`text` for a terminal: lines that are too long go on below at a word; paths and tables stay whole.

    As it is for a stream that is no terminal.
    """
    width = None if stream is None or stream.closed else terminal_width(stream)
    if width is None:
        return text
    return "\n".join(_filled(line, width) for line in text.split("\n"))


def _filled(line: str, width: int) -> str:
    if len(line) <= width or "  " in line.lstrip() or "\t" in line:
        return line
    return folded(line, width, indent=len(line) - len(line.lstrip()) + 2)


def folded(line: str, width: int | None, *, indent: int) -> str:
    """`line` in lines of at most `width` columns, cut at words, the later ones indented; words stay whole."""
    if width is None or len(line) <= width:
        return line
    return textwrap.fill(
        line, width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False
    )


def terminal_width(stream: TextIO) -> int | None:
    """Columns of a terminal, at least 20; None for a stream that is none."""
    return max(shutil.get_terminal_size().columns, 20) if stream.isatty() else None


def has_colour(stream: TextIO, choice: str = "auto") -> bool:
    """True for colours: `always`, `never`, or `auto`: a terminal that is not dumb, without NO_COLOR."""
    if choice != "auto":
        return choice == "always"
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return stream.isatty()


def _is_harmless(character: str) -> bool:
    return character.isprintable() or character == _JOINER or unicodedata.category(character) == "Zs"


def _escaped(character: str) -> str:
    number = ord(character)
    if number < 0x100:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"
