"""Add the way out to messages of errors that name none: the part that follows a semicolon."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator

_RIGHTS = "give this user the right to read it and to enter its folders, with chmod"
_OF_READING = {
    errno.EACCES: _RIGHTS,
    errno.EPERM: _RIGHTS,
    errno.EISDIR: "a folder has that name: name a file",
    errno.ENOTDIR: "a file is in the place of a folder: correct the path",
    errno.ELOOP: "its links lead in a circle: name the file itself",
    errno.ENAMETOOLONG: "choose a shorter path",
    errno.EIO: "its disk or network failed: look at the system's log (`dmesg`)",
    errno.ESTALE: "the network file system lost it: mount it again",
    errno.ENXIO: "it is a socket or a FIFO without a writer: name a file",
}


def reading_advice(error: BaseException) -> str:
    """Return the end of a message about a file that cannot be read; "" if there is no advice."""
    advice = _OF_READING.get(getattr(error, "errno", None) or 0)
    return f"; {advice}" if advice else ""


def with_way_out(message: str, advice: str) -> str:
    """Return the message with `advice` at its end, unless it has a way out. advice: "" for none."""
    return message if ";" in message or not advice else f"{message}; {advice.removeprefix('; ')}"


@contextlib.contextmanager
def way_out(advice: str) -> Iterator[None]:
    """Append `advice` to the message of a plain ValueError of the block that has no way out."""
    try:
        yield
    except ValueError as error:
        if type(error) is not ValueError or ";" in str(error):
            raise
        raise ValueError(with_way_out(str(error), advice)) from None
