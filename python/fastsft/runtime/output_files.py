"""Write files to an output directory atomically, without following links or replacing a user's files.

A record in the directory has the length and checksum of each file that fastsft wrote there. If a new file has
the name of a file that is not on record, the old file is renamed instead of replaced.
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
ARGUMENTS = "training_args.json"  # written for every model that fastsft saves
_lock = threading.Lock()  # guards the record files


def replace_file(path: str | Path, content: _Content) -> None:
    """Replace a file atomically: at any time the file has either the old or the new content.

    If `path` is a link, the link is replaced and not its target. The content is first written under a random
    temporary name in the same directory (new_files.py). OSError if writing fails.
    """
    write_below(Path(path).parent, Path(path).name, content)


def write_below(directory: Path, name: str, content: _Content, durable: bool = False) -> None:
    """Replace the file `name` in `directory`. `name` may contain folders; ValueError if a folder is a link.

    durable: sync the content before the rename.
    """
    with fresh_file(directory, name, durable) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def check_output_file(path: str | Path, flag: str) -> None:
    """Raise ValueError if `path` exists and is not a regular file, or if its folder is missing.

    flag: the flag with which the user named the file, for the message. A link to a regular file is allowed; a
    write replaces the link, not its target.
    """
    try:
        mode = os.stat(path).st_mode
    except OSError:
        folder = os.path.dirname(path) or "."
        if not os.path.isdir(folder):
            raise ValueError(
                f"{flag}: {path}: expected a file in a folder that is there, got {folder}: make it first, or "
                "choose another name"
            ) from None
        return
    if not stat.S_ISREG(mode):
        raise ValueError(
            f"{flag}: {path}: expected the name of a file, got {kind_of(mode)}; it is left as it is: choose "
            "another name"
        )


def write_for_flag(path: str | Path, content: _Content, flag: str) -> None:
    """Replace the file that the user named with `flag`, after `check_output_file`."""
    check_output_file(path, flag)
    replace_file(path, content)


def write_output(path: str | Path, content: _Content) -> None:
    """Write one of fastsft's files to an output directory, and put it on record.

    If fastsft did not write the existing file of that name, that file is renamed, with a message
    (`archive_foreign`). If it is protected, a message is printed and the new file is not written.
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
    """Put the digests of files on record. OSError if the record cannot be written.

    Called before the files are written, so that they count as fastsft's even after a crash.
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
        # The run continues, but the next run will not find the files on record and will rename them.
        except NotReplacedError as error:
            tell_once(f"{path}: {error.strerror}")


def archive_changed(directory: Path, files: Mapping[str, Digest]) -> None:
    """Rename small model files in `directory` that are no longer as fastsft wrote them (`archive_foreign`).

    files: names and digests of files that are about to be written. Weights and files in folders are left
    alone. Does nothing if the record has no model, because csrc/storage/file_set.cpp handles that case.
    """
    if ARGUMENTS in recorded_files(directory):
        for name, digest in files.items():
            if "/" not in name and not name.endswith(".safetensors"):
                archive_foreign(directory / name, digest)


def archive_foreign(path: Path, fresh: Digest | None = None) -> None:
    """Rename a file that fastsft did not write to previous-<UTC time>-<name>, and print a message.

    A file counts as fastsft's, and keeps its name, if it is on record or has the digest `fresh` of the new
    content. Links keep their names, too, because a write replaces only the link. NotReplacedError if the file
    is protected.
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

Digest: TypeAlias = tuple[int, int]  # length in bytes, and CRC-32C


def digest_of(content: bytes | memoryview) -> Digest:
    """Return length and checksum of `content`."""
    from fastsft import _C

    return len(bytes(content)), int(_C.crc32c(bytes(content)))


def digest_of_file(path: str | Path) -> Digest:
    """Return length and checksum of a regular file. OSError if it cannot be read."""
    from fastsft import _C

    digest = _C.digest_file(str(path))
    return int(digest.size), int(digest.crc32c)


def is_written(path: Path) -> bool:
    """True if the regular file `path` has the length and checksum of a file that fastsft wrote there."""
    from fastsft import _C

    digests = recorded_files(path.parent).get(path.name, [])
    try:
        return bool(digests) and digest_of_file(path) in digests
    except (OSError, _C.FileError):  # this process cannot read the file
        return False


def _digest_there(path: Path) -> Digest | None:
    from fastsft import _C

    try:
        return digest_of_file(path)
    except (OSError, _C.FileError):
        return None


def recorded_files(directory: Path) -> dict[str, list[Digest]]:
    """Return the digests on record in a directory, by file name; {} if there is no valid record."""
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

    The digest of each file's present content stays on record, too: if a crash comes before the file is
    replaced, the old file still counts as fastsft's.
    """
    record = recorded_files(directory)
    for name, digest in digests.items():
        recorded = record.get(name, [])
        there = _digest_there(directory / name) if len(recorded) > 1 else None
        kept = [there] if there in recorded else recorded[-1:]
        record[name] = [*(other for other in kept if other != digest), digest]
    return json.dumps(record, sort_keys=True) + "\n"


def files_of(write: Callable[[str], object], within: Path | None = None) -> dict[str, bytes]:
    """Call `write` with a temporary directory, and return the contents of the files there by relative path.

    The directory is in the system's temporary folder or, if that folder is full or not writable, in `within`.
    The system's folder is preferred because other users may have write access to `within`.
    """
    try:
        return _files_of(write, None)
    except Exception as error:  # a library in Rust raises its own exception classes
        if within is None or not (isinstance(error, OSError) or is_disk_full(error)):
            raise
    return _files_of(write, within)


def _files_of(write: Callable[[str], object], within: Path | None) -> dict[str, bytes]:
    with tempfile.TemporaryDirectory(dir=within, prefix=".fastsft-private-") as folder:
        write(folder)
        files = [path for path in sorted(Path(folder).rglob("*")) if path.is_file()]
        return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}
