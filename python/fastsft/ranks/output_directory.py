"""The output directory of a run: which ranks write there, and the lock that keeps other runs out."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from fastsft.ranks.exchange import AllOrNone
from fastsft.runtime.launch import launch
from fastsft.runtime.messages import tell

if TYPE_CHECKING:
    from fastsft import _C

# Clients of these file systems cache whole pages, so machines that write one file would undo each other.
_UNSAFE_FOR_RANGES = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "fuse.sshfs"}
_ESCAPE = re.compile(rb"\\([0-3][0-7]{2})")  # an octal escape, such as that of a space in /proc/self/mounts

# parallel: every rank writes its own byte ranges of every file. mixed: rank 0 gathers and writes the model
# files, and every rank writes its own training state. stream: rank 0, or local rank 0 of every node, writes
# all files.
SaveMode = Literal["parallel", "mixed", "stream"]


@dataclass(frozen=True)
class DirectoryView:
    """A rank's view of a directory that rank 0 made.

    sees: the directory exists for this rank. host: name of the rank's machine. file_system: its type, such as
    nfs4.
    """

    sees: bool
    host: str
    file_system: str


def look_at(directory: str | Path) -> DirectoryView:
    """Return this rank's view of `directory`."""
    path = Path(directory)
    return DirectoryView((path / ".fastsft-owner").exists(), socket.gethostname(), file_system_of(path))


def choose_save_mode(wanted: str, sights: list[DirectoryView]) -> tuple[SaveMode, str]:
    """Return the save mode, and the reason if the ranks' views rule out "parallel" (otherwise "").

    wanted: --save_mode. sights: the views of all ranks. ValueError if `wanted` is "parallel" and a rank does
    not see the directory.
    """
    blind = [rank for rank, sight in enumerate(sights) if not sight.sees]
    if blind:
        if wanted == "parallel":
            raise ValueError(
                f"--save_mode parallel: rank {blind[0]} does not see the directory that rank 0 made; put "
                "--output_dir on a shared file system, or leave out --save_mode"
            )
        return "stream", f"rank {blind[0]} does not see --output_dir"
    if wanted == "stream":
        return "mixed", ""
    kind = sights[0].file_system
    several = len({sight.host for sight in sights}) > 1
    if wanted == "auto" and several and kind in _UNSAFE_FOR_RANGES:
        return "mixed", f"{kind} does not let several machines write one file"
    return "parallel", ""


class SaveArguments(Protocol):
    """The arguments that decide which ranks write."""

    @property
    def save_on_each_node(self) -> bool: ...
    @property
    def save_mode(self) -> str: ...


def agreed_save_mode(
    args: SaveArguments, directory: str | Path, agreement: AllOrNone
) -> tuple[SaveMode, str]:
    """Choose the save mode for a directory that rank 0 has made. Collective."""
    if args.save_on_each_node:
        return "stream", ""
    if agreement.world_size == 1:
        return ("mixed", "") if args.save_mode == "stream" else ("parallel", "")
    return choose_save_mode(args.save_mode, agreement.settle(look_at(directory)))


def writes_small_files(args: SaveArguments) -> bool:
    """True if this rank makes directories and small files: rank 0, or with save_on_each_node local rank 0."""
    return launch().local_rank == 0 if args.save_on_each_node else launch().rank == 0


def file_system_of(path: Path) -> str:
    """Return the type of the file system that holds `path`, as in /proc/self/mounts; "" if unknown."""
    try:
        mounts = Path("/proc/self/mounts").read_bytes().splitlines()
    except OSError:
        return ""
    return _kind_of(os.fsencode(path.resolve()), mounts)


def _kind_of(place: bytes, mounts: list[bytes]) -> str:
    """Return the file system type of the innermost mount that contains the path `place`.

    Paths are bytes because they need not be valid UTF-8.
    """
    best = (b"", b"")
    for line in mounts:
        words = line.split(b" ")
        if len(words) < 3:
            continue
        point = _ESCAPE.sub(lambda escape: bytes([int(escape[1], 8)]), words[1])
        inside = place == point or place.startswith(point.rstrip(b"/") + b"/")
        if inside and len(point) >= len(best[0]):
            best = (point, words[2])
    return os.fsdecode(best[1])


_LOCK_NAME = ".fastsft-lock"


class _Hold:
    """A directory locked for this run; `lock` is the lock on rank 0, and None on other ranks."""

    def __init__(self, path: str, lock: _C.RunLock | None) -> None:
        self._path, self.lock = path, lock
        self._identity = None if lock is None else _identities(path)

    def check(self) -> None:
        """Raise RuntimeError if the directory has been replaced, or if another run has locked it.

        If the directory was removed, make and lock it again, with a message.
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


_held: dict[str, _Hold] = {}  # by resolved path


@contextmanager
def run_lock(directory: str | os.PathLike[str]) -> Iterator[None]:
    """Lock an existing `directory` for this run while the block runs. Collective.

    Does nothing if this run has already locked it. If another run has locked it, every rank raises ValueError
    with that run's host and process id.
    """
    from fastsft import _C

    path = os.path.realpath(directory)
    if path in _held:
        yield
        return
    agreement = AllOrNone(f"locking {directory}")
    hold = agreement.attempt_on_rank0(lambda: _Hold(path, _C.RunLock(str(directory))))
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
    """True if this process has locked `directory`, so that no other run writes there."""
    hold = _held.get(os.path.realpath(directory))
    return hold is not None and hold.lock is not None


def check_still_held(directory: str | os.PathLike[str]) -> None:
    """Raise RuntimeError if this run has locked `directory` and it has been replaced since.

    Called before writes. Does nothing for a directory that this run has not locked.
    """
    hold = _held.get(os.path.realpath(directory))
    if hold is not None:
        hold.check()


def _identities(path: str) -> tuple[tuple[int, int] | None, tuple[int, int] | None]:
    """Return (device, inode) of the directory and of its lock file, each None if missing."""
    return _identity(path), _identity(Path(path) / _LOCK_NAME)


def _identity(path: str | Path) -> tuple[int, int] | None:
    try:
        status = os.stat(path, follow_symlinks=False)
    except OSError:
        return None
    return status.st_dev, status.st_ino
