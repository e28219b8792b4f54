"""The directory of the token caches: where it is, who writes in it, what is cleared away."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import time
from collections.abc import Iterator
from io import FileIO
from pathlib import Path

from fastsft import _C
from fastsft.runtime.messages import tell
from fastsft.runtime.regular_files import check_name
from fastsft.runtime.timeouts import note_progress

_LOCK_PAUSE = 0.2  # seconds
_DAY = 24 * 3600.0
_FORGOTTEN = _DAY  # temporary files and locks that nobody has written to for so long
_UNUSED = 30 * _DAY  # caches that no run has opened, hashes that none has written, for so long
_KEY = "[0-9a-f]" * 64
DIGESTS = "digests"


def cache_directory(choice: str | None) -> Path | None:
    """The directory that `--data_cache` names; else `$XDG_CACHE_HOME/fastsft` or `~/.cache/fastsft`.

    None for "none", and with a line that says so when the directory cannot be made or written to.
    """
    if choice == "none":
        return None
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    directory = Path(choice or f"{home}/fastsft").expanduser()
    check_name(directory, "--data_cache")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if os.access(directory, os.W_OK):
            return directory
        reason = "it cannot be written to"
    except OSError as error:
        reason = str(error)
    tell(f"no token cache in {directory}: {reason}; --data_cache names another directory, or none")
    return None


@contextlib.contextmanager
def only_writer(directory: Path, key: str) -> Iterator[None]:
    """One run at a time labels for one key; others wait here, and find the cache when they come on.

    The lock goes with its process, its file with the end of the block. Where the file system knows no locks,
    runs label side by side, each leaving a whole cache; so they do, with a line, where something else than a
    regular file has the lock's name, which is left as it is.
    """
    path = directory / f"{key}.lock"
    with contextlib.ExitStack() as stack:
        try:
            file = _open_lock(path)
            stack.callback(_close, file)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                tell(f"another run labels the same data; waiting for {directory / key}.tokens")
                _wait_for_lock(file)
            stack.callback(_remove_lock, path, file)  # while it is held
        except OSError:
            pass
        except ValueError as error:
            tell(f"the data is labelled without a lock: {error}")
        yield


def _close(file: FileIO) -> None:
    """Close the lock file, in which nothing was written that could be lost."""
    with contextlib.suppress(OSError):
        file.close()


def _open_lock(path: Path) -> FileIO:
    """The lock file, made when it is not there; its content is nobody's. ValueError for what is no regular
    file of one name. Never waits, follows no link."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o666)
    except OSError as error:
        if os.path.lexists(path):
            raise ValueError(f"{path}: expected a regular file: {error.strerror}") from error
        raise
    file = os.fdopen(descriptor, "r+b", buffering=0)
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        file.close()
        raise ValueError(f"{path}: expected a regular file with one name")
    return file


def _wait_for_lock(file: FileIO) -> None:
    """Until it is ours. To wait is to come on: the kernel gives the lock free when its holder ends."""
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            note_progress()
            time.sleep(_LOCK_PAUSE)


def mark_used(path: Path) -> None:
    """Note that a run opened the cache `path`, as far as that is possible: its time of change is now."""
    with contextlib.suppress(OSError):
        os.utime(path)


def remove_forgotten(directory: Path) -> None:
    """Remove what killed runs left a day ago and caches that no run opened for 30 days, where possible.

    Only names that fastsft gives; a run that has a removed cache mapped keeps it until it ends.
    """
    ages = {
        f"{_C.cache_temporary_prefix}[0-9a-f]*-[0-9]": _FORGOTTEN,
        f"{_KEY}.lock": _FORGOTTEN,
        f"{_KEY}.tokens": _UNUSED,
        f"{DIGESTS}/{'[0-9a-f]' * 32}.json": _UNUSED,
    }
    now = time.time()
    for pattern, age in ages.items():
        if digest_index(directory) is None and pattern.startswith(DIGESTS):
            continue
        for path in directory.glob(pattern):
            with contextlib.suppress(OSError):
                status = path.lstat()
                if stat.S_ISREG(status.st_mode) and status.st_mtime < now - age:
                    path.unlink()


def digest_index(directory: Path) -> Path | None:
    """The file of the hashes of data files; None when something else, or a link, has that name."""
    path = directory / DIGESTS
    try:
        mode = path.lstat().st_mode
    except OSError:
        return path
    return path if stat.S_ISDIR(mode) else None


def _remove_lock(path: Path, file: FileIO) -> None:
    """Remove the lock's name, as long as it is that of the file."""
    with contextlib.suppress(OSError):
        if os.path.samestat(path.lstat(), os.fstat(file.fileno())):
            path.unlink()
