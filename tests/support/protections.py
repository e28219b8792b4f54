"""What a person does to a file so that programs leave it: immutable, a mount point."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

_GET, _SET, _IMMUTABLE = 0x80086601, 0x40086602, 0x10
_BIND, _DETACH = 4096, 2


@contextlib.contextmanager
def immutable(path: Path) -> Iterator[None]:
    """As `chattr +i` makes it, whatever its name becomes; skipped where no file can be made so."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        _set_flag(descriptor, on=True)
        yield
    finally:
        with contextlib.suppress(OSError):
            _set_flag(descriptor, on=False)
        os.close(descriptor)


@contextlib.contextmanager
def immutable_inside(path: Path) -> Iterator[None]:
    """One file of a directory is immutable: everything else in it could be removed."""
    with immutable(sorted(each for each in path.rglob("*") if each.is_file())[-1]):
        yield


@contextlib.contextmanager
def mounted(path: Path) -> Iterator[None]:
    """A mount point, of the same content; the test is skipped without the right to mount."""
    libc = ctypes.CDLL(None, use_errno=True)
    name = os.fsencode(path)
    if libc.mount(name, name, None, _BIND, None) != 0:
        pytest.skip("this user may not mount")
    try:
        yield
    finally:
        libc.umount2(name, _DETACH)


PROTECTIONS: dict[str, Callable[[Path], contextlib.AbstractContextManager[None]]] = {
    "immutable": immutable,
    "immutable inside": immutable_inside,
    "mounted": mounted,
}


def _set_flag(descriptor: int, *, on: bool) -> None:
    try:
        (flags,) = struct.unpack("l", fcntl.ioctl(descriptor, _GET, struct.pack("l", 0)))
        flags = flags | _IMMUTABLE if on else flags & ~_IMMUTABLE
        fcntl.ioctl(descriptor, _SET, struct.pack("l", flags))
    except OSError as error:
        if on:
            pytest.skip(f"nothing can be made immutable here: {error}")
        raise
