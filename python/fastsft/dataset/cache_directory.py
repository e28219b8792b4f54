"""The directory of the token caches: where it is, who writes in it, what is cleared away."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from fastsft import _C
from fastsft.notices import tell
from fastsft.phase_timeouts import note_progress

_LOCK_PAUSE = 0.2  # seconds
_DAY = 24 * 3600.0
_FORGOTTEN = _DAY  # temporary files and locks that nobody has written to for so long
_UNUSED = 30 * _DAY  # caches that no run has opened, hashes that none has written, for so long
_KEY = "[0-9a-f]" * 64


def cache_directory(choice: str | None) -> Path | None:
    """The directory that `--data_cache` names; else `$XDG_CACHE_HOME/fastsft` or `~/.cache/fastsft`.

    None for "none", and with a line that says so when the directory cannot be made or written to.
    """
    if choice == "none":
        return None
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    directory = Path(choice or f"{home}/fastsft").expanduser()
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
    runs label side by side, each leaving a whole cache.
    """
    path = directory / f"{key}.lock"
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(open(path, "w"))
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                tell(f"another run labels the same data; waiting for {directory / key}.tokens")
                _wait_for_lock(file)
            stack.callback(_remove, path)  # while it is held
        except OSError:
            pass
        yield


def _wait_for_lock(file: IO[str]) -> None:
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
        f"{_C.cache_temporary_prefix}*": _FORGOTTEN,
        f"{_KEY}.lock": _FORGOTTEN,
        f"{_KEY}.tokens": _UNUSED,
        f"digests/{'[0-9a-f]' * 32}.json": _UNUSED,
    }
    now = time.time()
    for pattern, age in ages.items():
        for path in directory.glob(pattern):
            with contextlib.suppress(OSError):
                if path.stat().st_mtime < now - age:
                    path.unlink()


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()
