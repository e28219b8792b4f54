"""Standard output and error as best effort: a log that cannot be written costs lines, never the run.

A reader that went away, a full disk, a closed descriptor: what is printed then is lost, nothing is raised.
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
    """/dev/null for standard descriptors that this process was started without.

    Else the next file that is opened gets such a number, and what is printed from C++ goes into that file.
    """
    for number, stream in enumerate((sys.stdin, sys.stdout, sys.stderr)):
        if stream is None and not _is_open(number):
            null = os.open(os.devnull, os.O_RDWR)
            if null != number:
                os.dup2(null, number)
                os.close(null)


def make_best_effort() -> None:
    """Let sys.stdout and sys.stderr of a program raise nothing; those that somebody has replaced stay."""
    occupy_closed()
    for number, name in ((1, "stdout"), (2, "stderr")):
        stream = getattr(sys, name)
        if stream is None or (stream is getattr(sys, f"__{name}__") and _is_open(number)):
            setattr(sys, name, outlet(number, stream))


def outlet(number: int, like: TextIO | None = None, *, write_through: bool = False) -> io.TextIOWrapper:
    """A text stream to the descriptor `number` that loses what cannot be written.

    like: the stream whose encoding and buffering it takes over, None for UTF-8.
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
    """A descriptor to which all of the data are written, or as much as can be."""

    def write(self, data: ReadableBuffer) -> int:
        """The length of `data`, whatever became of them."""
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
    """Print a line at once, as far as possible; also in programs whose streams are not ours."""
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
