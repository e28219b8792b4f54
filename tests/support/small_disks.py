"""Small file systems of their own, made by mount(8): what only a real full disk shows."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

KINDS = ("ext4", "tmpfs")


def _run(*words: str) -> None:
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    except FileNotFoundError as error:
        raise OSError(f"{words[0]} is not there") from error
    if done.returncode:
        raise OSError(f"{' '.join(words)}: {done.stderr.strip()}")


@contextlib.contextmanager
def small_disk(kind: str, folder: Path, megabytes: int) -> Iterator[Path]:
    """An empty file system of that size, mounted below `folder`; OSError when it cannot be made."""
    place = folder / "disk"
    place.mkdir()
    if kind == "tmpfs":
        _run("mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(place))
    else:
        image = folder / "image"
        with image.open("wb") as file:
            file.truncate(megabytes << 20)
        _run(f"mkfs.{kind}", "-q", "-m", "0", str(image))  # nothing kept for root
        _run("mount", "-o", "loop", str(image), str(place))
    try:
        yield place
    finally:
        _run("umount", "--lazy", str(place))


def fill(disk: Path, left: int) -> Path:
    """A file that leaves about `left` bytes to others; its path."""
    ballast = disk / "ballast"
    os.sync()  # what was removed before is free for sure
    size = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize - left
    with ballast.open("wb") as file:
        while size > 0:
            try:
                os.posix_fallocate(file.fileno(), 0, size)
                break
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                size -= 64 << 10  # the file system's own bookkeeping takes some
    return ballast


def why_not(kind: str, folder: Path) -> str | None:
    """Why such a disk cannot be made here; None when it can."""
    folder.mkdir()
    try:
        with small_disk(kind, folder, 4):
            return None
    except OSError as error:
        return f"{kind} cannot be mounted: {error}"
