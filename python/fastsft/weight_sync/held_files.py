"""Files of a save from their writing until they have their names: what is committed is what was written."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path

from fastsft.runtime.regular_files import kind_of

_WAY_OUT = "something else changes files here: give every trainer a directory of its own, and save again"


class HeldFiles:
    """Files that this process holds open, so that no other gets their numbers.

    A link, or another file of the same size, that replaces one of them is told by that.
    """

    def __init__(self) -> None:
        self._descriptors: dict[str, int] = {}

    def hold(self, name: str, path: Path) -> None:
        """Open the regular file `path`, which will be called `name`. RuntimeError when it is none."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:  # ELOOP of a link
            raise changed(path, error.strerror or str(error)) from error
        self._descriptors[name] = descriptor

    def check(self, name: str, path: Path) -> None:
        """RuntimeError unless `path` is the file that is held as `name`."""
        check_same(self._descriptors[name], path)

    def close(self) -> None:
        """Let all go; a second call does nothing."""
        while self._descriptors:
            os.close(self._descriptors.popitem()[1])


def check_same(descriptor: int, path: Path) -> None:
    """RuntimeError unless `path` is the open file itself, and no link to it."""
    ours = os.fstat(descriptor)
    try:
        found = os.lstat(path)
    except FileNotFoundError as error:
        raise changed(path, "nothing has this name") from error
    if not stat.S_ISREG(found.st_mode):
        raise changed(path, "a link" if stat.S_ISLNK(found.st_mode) else kind_of(found.st_mode))
    if (found.st_dev, found.st_ino) != (ours.st_dev, ours.st_ino):
        raise changed(path, "another one")


def changed(path: Path, found: str) -> RuntimeError:
    """The error for a file that is no longer what this save wrote."""
    return RuntimeError(f"{path}: expected the file that this save wrote, got: {found}; {_WAY_OUT}")


def check_free(directory: Path, names: Iterable[str]) -> None:
    """ValueError when something else than a file or a link has one of the names that files are to get."""
    for name in names:
        try:
            mode = os.lstat(directory / name).st_mode
        except (FileNotFoundError, NotADirectoryError):
            continue
        if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
            raise ValueError(
                f"{directory / name}: expected a file of a save, or nothing of this name, got "
                f"{kind_of(mode)}; it is left as it is: move it away and save again"
            )
