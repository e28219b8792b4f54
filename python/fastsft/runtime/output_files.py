"""Files in an output directory: written whole or not at all, through no link, never over others' files.

A record in the directory has length and checksum of each file that fastsft wrote there. Any other file under
our names is kept under a new name.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias

from fastsft.runtime.file_calls import NotReplacedError, is_disk_full
from fastsft.runtime.messages import tell, tell_once
from fastsft.runtime.new_files import fresh_file
from fastsft.runtime.regular_files import kind_of, read_json_object

_Content = str | bytes | memoryview
ARGUMENTS = "training_args.json"  # of every model that fastsft saves
_lock = threading.Lock()  # of the records of what was written


def replace_file(path: str | Path, content: _Content) -> None:
    """Replace a file, or a link but not its target, atomically: the name always has old or new content.

    The content is written under a random temporary name in the same directory (new_files.py). OSError if that
    fails.
    """
    write_below(Path(path).parent, Path(path).name, content)


def write_below(directory: Path, name: str, content: _Content, durable: bool = False) -> None:
    """Replace the file `name`, which may contain folders below `directory`; ValueError for a link in the way.

    durable: sync the content before the rename.
    """
    with fresh_file(directory, name, durable) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def check_output_file(path: str | Path, flag: str) -> None:
    """Raise ValueError unless `flag` names a regular file or no file yet.

    A link to a regular file is allowed: the link is replaced, and its target stays as it is.
    """
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return
    if not stat.S_ISREG(mode):
        raise ValueError(
            f"{flag}: {path}: expected the name of a file, got {kind_of(mode)}; it is left as it is: choose "
            "another name"
        )


def write_for_flag(path: str | Path, content: _Content, flag: str) -> None:
    """Replace a file that the user named, after `check_output_file`."""
    check_output_file(path, flag)
    replace_file(path, content)


def write_output(path: str | Path, content: _Content) -> None:
    """Replace one of fastsft's files in an output directory, but no file that fastsft did not write.

    Another file of that name is archived with a message (`archive_foreign`). A protected file stays, with a
    message.
    """
    path, new = Path(path), content.encode() if isinstance(content, str) else bytes(content)
    digest = digest_of(new)
    try:
        archive_foreign(path, digest)
        record_written(path.parent, {path.name: digest})
        replace_file(path, new)
    except NotReplacedError as error:
        tell_once(f"{path} is not written: {error.strerror}")


def record_written(directory: Path, digests: Mapping[str, Digest]) -> None:
    """Record the content that files are about to get, so that they are fastsft's even after a crash.

    OSError if the record cannot be written.
    """
    from fastsft import _C

    path = directory / RECORD_NAME
    with _lock:
        text = record_with(directory, digests)
        if _has_text(path, text):
            return
        if os.path.lexists(path) and not (path.is_symlink() or path.is_file()):
            _C.put_aside(str(path))
        try:
            replace_file(path, text)
        except NotReplacedError as error:  # what is written is put aside the next time, as if another's
            tell_once(f"{path}: {error.strerror}")


def archive_changed(directory: Path, files: Mapping[str, Digest]) -> None:
    """Archive small model files in `directory` that others have replaced.

    files: names and digests that are about to be written; weights and files in folders are ignored. Does
    nothing unless the directory has a model on record (csrc/storage/file_set.cpp decides then).
    """
    if ARGUMENTS in recorded_files(directory):
        for name, digest in files.items():
            if "/" not in name and not name.endswith(".safetensors"):
                archive_foreign(directory / name, digest)


def archive_foreign(path: Path, fresh: Digest | None = None) -> None:
    """Rename a foreign file that has a name of ours to previous-<UTC time>-<name>, with a message.

    Files on record, and files equal to the new content `fresh`, are fastsft's. A link is replaced, not kept.
    NotReplacedError if the file is protected.
    """
    from fastsft import _C

    try:
        mode = path.lstat().st_mode
    except OSError:
        return
    if stat.S_ISLNK(mode):
        return
    if stat.S_ISREG(mode) and (is_written(path) or (fresh is not None and _is_alike(path, fresh))):
        return
    if why := _C.protection_of(str(path)):
        raise NotReplacedError(errno.EPERM, why, str(path))
    aside = _C.put_aside(str(path))
    tell(f"{path}, which is not on record as written by fastsft, is now called {Path(aside).name}")


def _has_text(path: Path, text: str) -> bool:
    try:
        status = path.lstat()
        same_size = stat.S_ISREG(status.st_mode) and status.st_size == len(text.encode())
        return same_size and path.read_bytes() == text.encode()
    except OSError:
        return False


def _is_alike(path: Path, fresh: Digest) -> bool:
    from fastsft import _C

    try:
        return digest_of_file(path) == fresh
    except (OSError, _C.FileError):
        return False


RECORD_NAME = ".fastsft-files.json"

Digest: TypeAlias = tuple[int, int]  # bytes and CRC-32C


def digest_of(content: bytes | memoryview) -> Digest:
    """Return length and checksum of content that will be written."""
    from fastsft import _C

    return len(bytes(content)), int(_C.crc32c(bytes(content)))


def digest_of_file(path: str | Path) -> Digest:
    """Return length and checksum of a regular file. OSError if it cannot be read."""
    from fastsft import _C

    digest = _C.digest_file(str(path))
    return int(digest.size), int(digest.crc32c)


def is_written(path: Path) -> bool:
    """True if the regular file `path` has content that fastsft wrote there."""
    from fastsft import _C

    digests = recorded_files(path.parent).get(path.name, [])
    try:
        return bool(digests) and digest_of_file(path) in digests
    except (OSError, _C.FileError):  # not readable by this process
        return False


def _digest_there(path: Path) -> Digest | None:
    from fastsft import _C

    try:
        return digest_of_file(path)
    except (OSError, _C.FileError):
        return None


def recorded_files(directory: Path) -> dict[str, list[Digest]]:
    """Return the recorded digests of a directory by file name; {} without a record that fastsft wrote."""
    path = directory / RECORD_NAME
    try:
        content = read_json_object(path) if not path.is_symlink() else {}
        return {
            name: [(int(size), int(checksum)) for size, checksum in digests]
            for name, digests in content.items()
        }
    except (ValueError, TypeError, OverflowError):
        return {}


def record_with(directory: Path, digests: Mapping[str, Digest]) -> str:
    """Return the record as JSON, with `digests` added.

    Earlier content stays on record until its file is written again: a crash in between loses neither.
    """
    record = recorded_files(directory)
    for name, digest in digests.items():
        recorded = record.get(name, [])
        there = _digest_there(directory / name) if len(recorded) > 1 else None
        kept = [there] if there in recorded else recorded[-1:]
        record[name] = [*(other for other in kept if other != digest), digest]
    return json.dumps(record, sort_keys=True) + "\n"


def files_of(write: Callable[[str], object], within: Path | None = None) -> dict[str, bytes]:
    """Return the files that `write` puts into the directory that it is given: content by relative path.

    The directory is in the system's temporary folder, whose names are hidden from those who can write into
    `within`; if that folder is full or not writable, a private one in `within`.
    """
    try:
        return _files_of(write, None)
    except Exception as error:  # a library in Rust has types of its own
        if within is None or not (isinstance(error, OSError) or is_disk_full(error)):
            raise
    return _files_of(write, within)


def _files_of(write: Callable[[str], object], within: Path | None) -> dict[str, bytes]:
    with tempfile.TemporaryDirectory(dir=within, prefix=".fastsft-private-") as folder:
        write(folder)
        files = [path for path in sorted(Path(folder).rglob("*")) if path.is_file()]
        return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}
