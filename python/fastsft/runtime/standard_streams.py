"""Standard output and error as best effort: a log that cannot be written costs lines, never the run.

A reader that went away, a full disk, a closed descriptor: what is printed then is lost, nothing is raised.
"""

from __future__ import annotations

import contextlib
import io
import os
import select
import sys
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
