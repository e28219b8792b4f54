"""Folders inside a saved directory: made, renamed into and cleared without ever going through a link."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def make_folders(directory: Path, name: str) -> None:
    """The folders that the file `name` below `directory` needs. ValueError where one is a link or a file."""
    with opened_folder(directory, name, make=True):
        pass


def rename_into(directory: Path, temporary: str, name: str) -> None:
    """`temporary`, which is in `directory` itself, becomes `name`, which may be in a folder; durable.

    A link of that name is replaced, and what it leads to stays. ValueError as `make_folders`.
    """
    with opened_folder(directory, name) as folder:
        os.replace(directory / temporary, name.rpartition("/")[2], dst_dir_fd=folder)
        os.fsync(folder)


def remove_file(directory: Path, name: str) -> None:
    """The file `name` below `directory`, where it is there; of a link the link, never its target."""
    with contextlib.suppress(FileNotFoundError, ValueError), opened_folder(directory, name) as folder:
        os.unlink(name.rpartition("/")[2], dir_fd=folder)


@contextlib.contextmanager
def opened_folder(directory: Path, name: str, make: bool = False) -> Iterator[int]:
    """A descriptor of the folder that the file `name` is in. `directory` itself may be a link."""
    folder = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in name.split("/")[:-1]:
            if make:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, dir_fd=folder)
            inner = _open(directory, name, part, folder)
            os.close(folder)
            folder = inner
        yield folder
    finally:
        os.close(folder)


def _open(directory: Path, name: str, part: str, folder: int) -> int:
    try:
        return os.open(part, _FOLDER, dir_fd=folder)
    except FileNotFoundError:
        raise
    except OSError as error:  # ELOOP or ENOTDIR
        raise ValueError(
            f"{directory / name}: {part} is a link or a file: expected a folder; it is left as it is: "
            "move it away and save again"
        ) from error
