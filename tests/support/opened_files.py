"""What the kernel says is opened below some directories: inotify, seen whatever library or language opens."""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
from collections.abc import Iterator
from pathlib import Path

_OPEN = 0x20
_IS_DIRECTORY = 0x40000000
_HEADER = struct.Struct("iIII")


@contextlib.contextmanager
def opened_files(*places: Path) -> Iterator[list[str]]:
    """The names of files opened in the directories (or of the files) `places`, known when the block ends."""
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), "inotify_init1")
    found: list[str] = []
    try:
        watched = {}
        for place in places:
            number = libc.inotify_add_watch(descriptor, os.fsencode(place), _OPEN)
            if number < 0:
                raise OSError(ctypes.get_errno(), f"inotify_add_watch {place}")
            watched[number] = place
        yield found
        with contextlib.suppress(BlockingIOError):
            while events := os.read(descriptor, 1 << 16):
                found += _names(events, watched)
    finally:
        os.close(descriptor)


def _names(events: bytes, watched: dict[int, Path]) -> Iterator[str]:
    at = 0
    while at < len(events):
        number, mask, _, size = _HEADER.unpack_from(events, at)
        name = events[at + _HEADER.size : at + _HEADER.size + size].rstrip(b"\0").decode()
        at += _HEADER.size + size
        if not mask & _IS_DIRECTORY:
            yield name or watched[number].name
