"""Folders below a directory, entered from descriptors: a link that somebody puts there leads nowhere."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from fastsft.runtime.file_calls import explained, repeated

_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


@contextlib.contextmanager
def opened_folder(directory: Path, name: str, make: bool = False) -> Iterator[int]:
    """A descriptor of the folder that the file `name` is in. `directory` itself may be a link.

    make: folders that are not there. ValueError where a folder on the way is a link or a file.
    """
    if {"", ".", ".."} & set(name.split("/")):
        raise ValueError(f"{directory}: expected the name of a file below, got {name!r}")
    folder = repeated("open the folder", directory, lambda: os.open(directory, _DIRECTORY))
    try:
        for part in name.split("/")[:-1]:
            inner = _entered(directory, name, part, folder, make)
            os.close(folder)
            folder = inner
        yield folder
    finally:
        os.close(folder)


def make_folders(directory: Path, name: str) -> None:
    """The folders that the file `name` below `directory` needs. ValueError where one is a link or a file."""
    with opened_folder(directory, name, make=True):
        pass


def sync_folder(folder: int, path: Path) -> None:
    """Names in the folder of the descriptor are durable on return. path: for messages."""
    try:
        inside = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
        try:
            os.fsync(inside)
        finally:
            os.close(inside)
    except OSError as error:
        raise explained(error, "sync", path) from error


def _entered(directory: Path, name: str, part: str, folder: int, make: bool) -> int:
    path = directory / name
    if make:
        with contextlib.suppress(FileExistsError):
            repeated("make the folder of", path, lambda: os.mkdir(part, dir_fd=folder))

    def enter() -> int:
        return os.open(part, _DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)

    try:
        return repeated("open the folder of", path, enter)
    except OSError as error:
        if error.errno not in (errno.ENOTDIR, errno.ELOOP):
            raise
        raise ValueError(
            f"{path}: {part} is a link or a file: expected a folder; it is left as it is: "
            "move it away and save again"
        ) from error
