"""Print to the standard streams without ever failing, and make untrusted text safe for a terminal.

If the reader is gone, the disk is full or the descriptor is closed, printed lines are lost and no error is
raised. Output therefore never ends a run.
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

_PATIENCE_S = 1.0  # seconds to wait for a full non-blocking pipe


def occupy_closed() -> None:
    """Open /dev/null for each standard descriptor that was closed when this process started.

    Otherwise the next opened file would get the descriptor's number, and C++ code would print into that file.
    """
    for number, stream in enumerate((sys.stdin, sys.stdout, sys.stderr)):
        if stream is None and not _is_open(number):
            null = os.open(os.devnull, os.O_RDWR)
            if null != number:
                os.dup2(null, number)
                os.close(null)


def make_best_effort() -> None:
    """Replace sys.stdout and sys.stderr by streams that never raise.

    Streams that other code has set are kept."""
    occupy_closed()
    for number, name in ((1, "stdout"), (2, "stderr")):
        stream = getattr(sys, name)
        if stream is None or (stream is getattr(sys, f"__{name}__") and _is_open(number)):
            setattr(sys, name, outlet(number, stream))


def outlet(number: int, like: TextIO | None = None, *, write_through: bool = False) -> io.TextIOWrapper:
    """Return a text stream to the descriptor `number`. Text that cannot be written is dropped.

    like: a stream whose encoding and buffering are used; None for UTF-8. write_through: do not buffer.
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
    """A raw file that writes as much of its data as possible and raises no OSError."""

    def write(self, data: ReadableBuffer) -> int:
        """Write as much of `data` as possible, and return the length of `data` in any case."""
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
    """Print a line and flush. Errors are ignored, even if other code has set the stream."""
    stream = sys.stderr if to_stderr else sys.stdout
    if stream is None:
        return
    with contextlib.suppress(OSError, ValueError):  # ValueError comes from a closed stream
        print(text, file=stream, flush=True)


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


_JOINER = "\u200d"  # zero-width joiner, which joins emoji


def visible(text: str, *, keep: str = "\n\t", escape: str = "") -> str:
    """Return `text` with control, format and unassigned characters written as escapes.

    keep: characters that are never escaped. escape: further characters that are escaped.
    """
    return "".join(c if c in keep or (c not in escape and _is_harmless(c)) else _escaped(c) for c in text)


def one_line(text: str) -> str:
    """Return `text` like `visible`, with line breaks and tabs also written as escapes."""
    return visible(text, keep="")


def fitted(text: str, stream: TextIO) -> str:
    """Wrap long lines between words if `stream` is a terminal. Table rows are not wrapped."""
    width = None if stream is None or stream.closed else terminal_width(stream)
    if width is None:
        return text
    return "\n".join(_filled(line, width) for line in text.split("\n"))


def _filled(line: str, width: int) -> str:
    if len(line) <= width or "  " in line.lstrip() or "\t" in line:
        return line
    return folded(line, width, indent=len(line) - len(line.lstrip()) + 2)


def folded(line: str, width: int | None, *, indent: int) -> str:
    """Wrap a line between words to `width` columns; None for no limit.

    indent: columns before all lines but the first.
    """
    if width is None or len(line) <= width:
        return line
    return textwrap.fill(
        line, width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False
    )


def terminal_width(stream: TextIO) -> int | None:
    """Return the width of a terminal in columns, at least 20; None if `stream` is not a terminal."""
    return max(shutil.get_terminal_size().columns, 20) if stream.isatty() else None


def has_colour(stream: TextIO, choice: str = "auto") -> bool:
    """True if output should be coloured.

    choice: "always", "never" or "auto". "auto" means colours on a terminal that can show them, unless
    NO_COLOR is set.
    """
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
