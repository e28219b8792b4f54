"""Data from a named pipe: opening it does not wait for ever for a writer, and says that it waits."""

from __future__ import annotations

import os
import select
import stat
import time
from typing import BinaryIO

from fastsft.runtime.messages import tell
from fastsft.runtime.regular_files import check_no_pointer

SECONDS_UNTIL_TOLD = 2.0
SECONDS_TO_WAIT = 20.0


def open_data(path: str) -> BinaryIO:
    """A data file for reading: a regular one, a pipe or a device.

    A pipe is open once somebody writes to it. ValueError when nobody does within SECONDS_TO_WAIT, and for
    what cannot be opened.
    """
    try:
        # This itself raises for a socket and for what is not there.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ValueError(f"{path}: the data file cannot be read: {reason}") from None
    try:
        if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            _await_writer(descriptor, path)
        os.set_blocking(descriptor, True)
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            check_no_pointer(descriptor, path, "data")
        return open(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def _await_writer(descriptor: int, path: str) -> None:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN | select.POLLHUP)
    end, told = time.monotonic() + SECONDS_TO_WAIT, False
    while not poll.poll(1000 * (SECONDS_UNTIL_TOLD if not told else 1.0)):
        if not told:
            tell(f"{path} is a pipe: waiting for somebody to write to it")
            told = True
        if time.monotonic() > end:
            raise ValueError(
                f"{path}: expected data, got a pipe to which nobody has written for {SECONDS_TO_WAIT:g} s; "
                "start the program that writes to it first"
            )
