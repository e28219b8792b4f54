"""Print to standard streams as best effort, and make untrusted text safe for a terminal.

If a reader is gone, a disk is full or a descriptor is closed, the printed lines are lost and nothing is
raised: a log never costs the run.
"""

from __future__ import annotations

import contextlib
import io
import os
import select
import shutil
import sys
import textwrap
import unicodedata
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_PATIENCE_S = 1.0  # for a pipe that does not block and is full


def occupy_closed() -> None:
    """Open /dev/null for standard descriptors that this process was started without.

    Otherwise the next opened file would get such a number, and C++ would print into that file.
    """
    for number, stream in enumerate((sys.stdin, sys.stdout, sys.stderr)):
        if stream is None and not _is_open(number):
            null = os.open(os.devnull, os.O_RDWR)
            if null != number:
                os.dup2(null, number)
                os.close(null)


def make_best_effort() -> None:
    """Make sys.stdout and sys.stderr raise nothing; streams that somebody has replaced stay."""
    occupy_closed()
    for number, name in ((1, "stdout"), (2, "stderr")):
        stream = getattr(sys, name)
        if stream is None or (stream is getattr(sys, f"__{name}__") and _is_open(number)):
            setattr(sys, name, outlet(number, stream))


def outlet(number: int, like: TextIO | None = None, *, write_through: bool = False) -> io.TextIOWrapper:
    """Return a text stream to the descriptor `number` that drops text which cannot be written.

    like: the stream whose encoding and buffering to take over; None for UTF-8.
    """
    with contextlib.suppress(Exception):
        if like is not None:
            like.flush()
    return io.TextIOWrapper(
        Outlet(number, "w", closefd=False),
        encoding=getattr(like, "encoding", "utf-8"),
        errors=getattr(like, "errors", "backslashreplace"),
        line_buffering=getattr(like, "line_buffering", number == 2),
        write_through=write_through or getattr(like, "write_through", False),
    )


class Outlet(io.FileIO):
    """A raw file that writes as much of the data as possible, and raises nothing."""

    def write(self, data: ReadableBuffer) -> int:
        """Return the length of `data`, even if some could not be written."""
        view = memoryview(data).cast("B")
        left = view
        with contextlib.suppress(OSError):
            while left:
                written = super().write(left)
                if written is None and not select.select([], [self], [], _PATIENCE_S)[1]:
                    break
                left = left[written or 0 :]
        return len(view)


def say(text: str, *, to_stderr: bool = False) -> None:
    """Print a line at once, as far as possible, also to streams that are not ours."""
    stream = sys.stderr if to_stderr else sys.stdout
    if stream is None:
        return
    with contextlib.suppress(OSError, ValueError):  # ValueError: a closed stream
        print(text, file=stream, flush=True)


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


_JOINER = "\u200d"  # holds emoji together


def visible(text: str, *, keep: str = "\n\t", escape: str = "") -> str:
    """Return `text` with control, format and unassigned characters as escapes, except those in `keep`.

    escape: further characters to write as escapes.
    """
    return "".join(c if c in keep or (c not in escape and _is_harmless(c)) else _escaped(c) for c in text)


def one_line(text: str) -> str:
    """Return `visible` text with line breaks and tabs escaped, too."""
    return visible(text, keep="")


def fitted(text: str, stream: TextIO) -> str:
    """Wrap long lines at words if `stream` is a terminal; paths and tables stay whole."""
    width = None if stream is None or stream.closed else terminal_width(stream)
    if width is None:
        return text
    return "\n".join(_filled(line, width) for line in text.split("\n"))


def _filled(line: str, width: int) -> str:
    if len(line) <= width or "  " in line.lstrip() or "\t" in line:
        return line
    return folded(line, width, indent=len(line) - len(line.lstrip()) + 2)


def folded(line: str, width: int | None, *, indent: int) -> str:
    """Wrap a line at words to `width` columns, with later lines indented; words stay whole."""
    if width is None or len(line) <= width:
        return line
    return textwrap.fill(
        line, width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False
    )


def terminal_width(stream: TextIO) -> int | None:
    """Return a terminal's columns, at least 20; None for a stream that is no terminal."""
    return max(shutil.get_terminal_size().columns, 20) if stream.isatty() else None


def has_colour(stream: TextIO, choice: str = "auto") -> bool:
    """True for colours. choice: "always", "never", or "auto": on a capable terminal, without NO_COLOR."""
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
