"""One run at a time writes into an output directory (docs/spec/reliability.md, section 4)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from fastsft.ranks.agreement import Agreement
from fastsft.runtime.messages import tell

if TYPE_CHECKING:
    from fastsft import _C

_LOCK_NAME = ".fastsft-lock"


class _Hold:
    """A directory that this process holds; on ranks other than 0 without the lock itself."""

    def __init__(self, path: str, lock: _C.RunLock | None) -> None:
        self._path, self.lock = path, lock
        self._identity = None if lock is None else _identities(path)

    def check(self) -> None:
        """RuntimeError when the directory is another one by now, or another run holds it.

        One that was removed is made again, and held, with a line.
        """
        from fastsft import _C

        now = _identities(self._path)
        if self.lock is None or now == self._identity:
            return
        directory, lock_file = now
        assert self._identity is not None
        if lock_file is None and directory in (None, self._identity[0]):
            if directory is None:
                self._make_again()
            self.lock = _C.RunLock(self._path)
            self._identity = _identities(self._path)
            return
        raise _C.FileError(
            f"{self._path}: is no longer the directory that this run holds: it was removed or renamed, and "
            "another has its name, which may be another run's; nothing is written there. Stop the other run "
            "and start the same command again, or choose another --output_dir"
        )

    def _make_again(self) -> None:
        from fastsft import _C

        try:
            os.makedirs(self._path)
        except OSError as error:
            raise _C.FileError(f"{self._path}: the directory of this run is gone: {error.strerror}") from None
        tell(f"{self._path} was removed while this run writes there; it is made again, without what it held")


_held: dict[str, _Hold] = {}  # by path


@contextmanager
def run_lock(directory: str | os.PathLike[str]) -> Iterator[None]:
    """Hold `directory`, which exists, for this run; collective. Inside another hold of it nothing happens.

    ValueError on every rank, naming host and process, when another run holds it.
    """
    from fastsft import _C

    path = os.path.realpath(directory)
    if path in _held:
        yield
        return
    agreement = Agreement(f"locking {directory}")
    hold = agreement.attempt_on_first(lambda: _Hold(path, _C.RunLock(str(directory))))
    try:
        agreement.settle(None)
        hold = hold or _Hold(path, None)
        _held[path] = hold
        yield
    finally:
        _held.pop(path, None)
        if hold is not None and hold.lock is not None:
            hold.lock.release()


def holds_lock(directory: str | os.PathLike[str]) -> bool:
    """True if this process itself holds `directory`: no other run writes there."""
    hold = _held.get(os.path.realpath(directory))
    return hold is not None and hold.lock is not None


def check_still_held(directory: str | os.PathLike[str]) -> None:
    """Before a write: RuntimeError when `directory`, which this process holds, is another one by now.

    Nothing happens for a directory that this process does not hold.
    """
    hold = _held.get(os.path.realpath(directory))
    if hold is not None:
        hold.check()


def _identities(path: str) -> tuple[tuple[int, int] | None, tuple[int, int] | None]:
    """Device and inode of the directory and of its lock file; None of what is not there."""
    return _identity(path), _identity(Path(path) / _LOCK_NAME)


def _identity(path: str | Path) -> tuple[int, int] | None:
    try:
        status = os.stat(path, follow_symlinks=False)
    except OSError:
        return None
    return status.st_dev, status.st_ino
