"""Create and write files by descriptor, under unused names, without following links.

All files that fastsft's Python code writes are written here. Another user with write access to the directory
may replace a file name by a link. The descriptor then still refers to the file that was created here, so the
link is not followed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from fastsft.runtime.file_calls import NotReplacedError, explained, is_refusal, repeated

if TYPE_CHECKING:
    from typing_extensions import Buffer

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MOST_BYTES_OF_NAME = 200  # leaves room for a prefix and random digits; file names have at most 255 bytes
_MOST_BYTES_OF_CALL = 1 << 28
_MOST_COLLECTED_BYTES = 1 << 20


class NewFile:
    """A new file that is open for writing. Libraries can use this object as a file object.

    folder: descriptor of the directory that contains `path`; None to open `path` itself. shared: another rank
    may already have created the file. error: the first error of a write, or None. Each OSError names the path
    and suggests a remedy.
    """

    def __init__(self, path: Path, folder: int | None = None, *, shared: bool = False) -> None:
        self.path, self._folder, self._end = path, folder, 0
        self._collected = bytearray()
        self.error: OSError | None = None
        self._descriptor = _created(path, folder, shared)

    def write(self, data: Buffer) -> int:
        """Append all of `data`. Up to 1 MiB is buffered."""
        part = memoryview(data).cast("B")
        if len(self._collected) + len(part) > _MOST_COLLECTED_BYTES:
            self.flush()
        if len(part) > _MOST_COLLECTED_BYTES:
            self._end += self.write_at(self._end, part)
        else:
            self._collected += part
        return len(part)

    def write_at(self, offset: int, data: Buffer) -> int:
        """Write all of `data` at byte `offset`, and return the byte count."""
        left = memoryview(data).cast("B")
        size = len(left)
        while len(left):
            block, place = left[:_MOST_BYTES_OF_CALL], offset + size - len(left)
            try:
                count = repeated("write", self.path, lambda: os.pwrite(self._descriptor, block, place))  # noqa: B023
            except OSError as error:
                self.error = self.error or error
                raise
            left = left[count:]
        return size

    def flush(self) -> None:
        """Write the buffered data."""
        collected, self._collected = self._collected, bytearray()
        self._end += self.write_at(self._end, collected)

    def fileno(self) -> int:
        """Return the descriptor; -1 if the file is closed."""
        return self._descriptor

    def sync(self) -> None:
        """Flush, and make the content durable.

        A failed fsync is not repeated, because a second call may report success although data is lost.
        """
        self.flush()
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            raise explained(error, "sync", self.path) from error

    def close(self) -> None:
        """Close the descriptor, without a flush or sync; a second call does nothing."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            _close(descriptor, self.path)

    def rename_to(self, name: str) -> None:
        """Flush and close the file, and rename it to `name`. A file or link with that name is replaced.

        OSError if another program has replaced this file. NotReplacedError if the file with that name is
        protected.
        """
        self.flush()
        own, path = os.fstat(self._descriptor), self.path.with_name(name)
        self.close()

        def is_there() -> bool | None:
            return _is_same(own, name, self._folder) or None

        def rename() -> bool:
            os.replace(self.path.name, name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
            return True

        try:
            repeated(f"rename {self.path} to", path, rename, is_there)
        except OSError as error:
            if not is_refusal(error) or not os.path.lexists(path):
                raise
            why = f"what has the name may not be replaced: {os.strerror(error.errno or 0)}"
            raise NotReplacedError(error.errno, why, str(path)) from error
        if not stat.S_ISREG(os.stat(name, dir_fd=self._folder, follow_symlinks=False).st_mode):
            raise OSError(
                errno.EEXIST,
                "another program has replaced the file while it was written; choose a directory that others "
                "cannot write to",
                str(path),
            )

    def discard(self) -> None:
        """Close the file and remove it; errors are ignored."""
        with contextlib.suppress(OSError):
            self.close()
        with contextlib.suppress(OSError):
            os.unlink(self.path.name, dir_fd=self._folder)

    def __enter__(self) -> NewFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextlib.contextmanager
def fresh_file(directory: Path, name: str, durable: bool = False) -> Iterator[NewFile]:
    """Yield a new file with a temporary name, and rename it to `name` after the block.

    If the block fails, the file is removed. name: may contain folders below `directory`, which are created;
    ValueError if a folder is a link. durable: sync the content before the rename.
    """
    with opened_folder(directory, name, make=True) as folder:
        path = directory / name
        file = NewFile(path.with_name(_temporary_name(path.name)), folder)
        try:
            yield file
            if durable:
                file.sync()
            file.rename_to(path.name)
        except BaseException:
            file.discard()
            raise


def _temporary_name(name: str) -> str:
    start = os.fsencode(name)[:_MOST_BYTES_OF_NAME].decode("utf-8", "ignore")
    return f".fastsft-tmp-{start}-{secrets.token_hex(8)}"


def _created(path: Path, folder: int | None, shared: bool) -> int:
    name: str | Path = path if folder is None else path.name

    def create() -> int:
        return os.open(name, _FLAGS | os.O_EXCL, 0o666, dir_fd=folder)

    def made_before() -> int | None:
        """Open the file that an earlier try created although it reported an error.

        Such a file is empty and belongs to this user. Return None for any other file.
        """
        with contextlib.suppress(OSError):
            descriptor = os.open(name, _FLAGS & ~os.O_CREAT, dir_fd=folder)
            status = os.fstat(descriptor)
            if status.st_size == 0 and status.st_uid == os.geteuid():
                return descriptor
            os.close(descriptor)
        return None

    try:
        descriptor = repeated("create", path, create, made_before)
    except FileExistsError:
        if not shared:
            raise
        descriptor = repeated("open", path, lambda: os.open(name, _FLAGS & ~os.O_CREAT, dir_fd=folder))
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode) and status.st_nlink <= 1:
        return descriptor
    os.close(descriptor)
    raise OSError(
        errno.EEXIST,
        "cannot create: another program has put a file of its own there; choose a directory that others "
        "cannot write to",
        str(path),
    )


def _is_same(own: os.stat_result, name: str, folder: int | None) -> bool:
    try:
        return os.path.samestat(own, os.stat(name, dir_fd=folder, follow_symlinks=False))
    except OSError:
        return False


def _close(descriptor: int, path: Path) -> None:
    try:
        os.close(descriptor)
    except OSError as error:
        raise explained(error, "close", path) from error


_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


@contextlib.contextmanager
def opened_folder(directory: Path, name: str, make: bool = False) -> Iterator[int]:
    """Yield a descriptor of the folder that contains the file `name`.

    name: path relative to `directory`, which itself may be a link. make: create missing folders. ValueError
    if a folder in `name` is a link or a file.
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
    """Create the folders for the file `name` below `directory`.

    ValueError if a link or a file has a folder's name.
    """
    with opened_folder(directory, name, make=True):
        pass


def sync_folder(folder: int, path: Path) -> None:
    """Make the file names in an open folder durable. path: the folder's path for messages."""
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
