"""Somebody who may write into a directory and puts links to files elsewhere in the place of every name in it.

`between_calls` lets him act between any two calls of the Python code under test, so that no race is left to
luck; `watching` is a process of its own that the kernel tells of every name (inotify).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import select
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

HOW = ("link", "hard link")
_RANDOM = re.compile(r"\.fastsft-tmp-(.*)-([0-9a-f]{16})")
_NEW = 0x80 | 0x100  # IN_MOVED_TO, IN_CREATE


class Planter:
    """Puts links to files of `outside` into `watched`: for names that are there, and for names that follow.

    expected: names that the code under test is known to write; where a temporary name of another one shows
    its random digits, they are planted with the same digits, as nobody but an adversary would.
    """

    def __init__(
        self, watched: Path, outside: Path, how: str = "link", expected: tuple[str, ...] = ()
    ) -> None:
        self._watched, self._outside, self._how, self._expected = watched, outside, how, expected
        self._own: set[tuple[str, int]] = set()
        self.planted = 0

    def act(self) -> None:
        """Replace every name below the directory that is not his own, once."""
        with contextlib.suppress(OSError):
            self._act_in(str(self._watched))

    def _act_in(self, folder: str) -> None:
        for entry in list(os.scandir(folder)):
            with contextlib.suppress(OSError):
                if entry.is_dir(follow_symlinks=False):
                    self._act_in(entry.path)
                elif (entry.path, entry.inode()) not in self._own and not entry.is_symlink():
                    self._plant(entry.path, replace=True)
                if match := _RANDOM.fullmatch(entry.name):
                    for name in self._expected:
                        self._plant(os.path.join(folder, f".fastsft-tmp-{name}-{match[2]}"))

    def _plant(self, path: str, replace: bool = False) -> None:
        victim = self._outside / "victim"
        if replace:
            os.unlink(path)
        elif os.path.lexists(path):
            return
        if self._how == "link":
            os.symlink(victim, path)
        else:
            os.link(victim, path)
        self._own.add((path, os.lstat(path).st_ino))
        self.planted += 1


@contextlib.contextmanager
def between_calls(planter: Planter) -> Iterator[None]:
    """He acts after every call of this thread that may have made a name, in the block."""
    acting = False

    def profile(frame: FrameType, event: str, argument: object) -> None:
        nonlocal acting
        if event == "c_return" and not acting and _touches_files(argument):
            acting = True
            try:
                planter.act()
            finally:
                acting = False

    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(None)


def _touches_files(function: object) -> bool:
    """Of the operating system, of files, or native code: no other call makes a name."""
    module = getattr(function, "__module__", None) or type(getattr(function, "__self__", None)).__module__
    return module.startswith(("posix", "_io", "io", "fastsft", "torch", "safetensors", "tempfile"))


@contextlib.contextmanager
def watching(planter: Planter, *folders: Path) -> Iterator[None]:
    """He is another process and acts as soon as a name appears in one of `folders`, or below."""
    ready, told = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            _watch(planter, folders, told)
        finally:
            os._exit(0)
    os.read(ready, 1)
    try:
        yield
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(ready)
        os.close(told)


def _watch(planter: Planter, folders: tuple[Path, ...], told: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = libc.inotify_init1(os.O_CLOEXEC)
    seen: set[str] = set()

    def add(folder: str) -> None:
        if folder not in seen:
            seen.add(folder)
            libc.inotify_add_watch(descriptor, os.fsencode(folder), _NEW)

    for folder in folders:
        add(str(folder))
    os.write(told, b"1")
    while True:
        select.select([descriptor], [], [])
        os.read(descriptor, 1 << 16)
        planter.act()
        for folder in folders:
            for inner, names, _ in os.walk(folder):
                for name in names:
                    add(os.path.join(inner, name))


def state_outside(folder: Path) -> dict[str, tuple[bytes, int, int]]:
    """Content, permissions and time of change of all files of a directory that nobody may touch."""
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mode, path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file()
    }
