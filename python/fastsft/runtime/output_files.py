"""Files of a run next to those of others: whole or not there, through no link, over no other's file."""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Mapping
from pathlib import Path

from fastsft.runtime.messages import tell, tell_once
from fastsft.runtime.new_files import fresh_file
from fastsft.runtime.protected import NotReplacedError
from fastsft.runtime.regular_files import kind_of
from fastsft.runtime.written_files import (
    RECORD_NAME,
    Digest,
    digest_of,
    digest_of_file,
    is_written,
    record_with,
    written_in,
)

_Content = str | bytes | memoryview
ARGUMENTS = "training_args.json"  # of every model that fastsft saves
_lock = threading.Lock()  # of the records of what was written


def replace_file(path: str | Path, content: _Content) -> None:
    """The old or the new content has the name, never half of one. A link is replaced, its target never.

    Written under a random temporary name that nothing has, in the same directory (new_files.py). OSError when
    it cannot be.
    """
    write_below(Path(path).parent, Path(path).name, content)


def write_below(directory: Path, name: str, content: _Content, durable: bool = False) -> None:
    """`replace_file` of `name`, which may have folders below `directory`; ValueError where one is a link.

    durable: what the file holds, on return.
    """
    with fresh_file(directory, name, durable) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def check_output_file(path: str | Path, flag: str) -> None:
    """ValueError unless `flag` names a regular file or nothing yet: no device, FIFO or folder is written.

    A link counts as what it leads to; it is replaced, and its target stays as it is.
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
    """`replace_file` of a path that the user named, after `check_output_file`."""
    check_output_file(path, flag)
    replace_file(path, content)


def write_output(path: str | Path, content: _Content) -> None:
    """`replace_file` of a name of fastsft's in an output directory, over nothing that fastsft did not write.

    What else has the name is put aside (`keep_aside`), with a line. What is protected stays, with a line.
    """
    path, new = Path(path), content.encode() if isinstance(content, str) else bytes(content)
    digest = digest_of(new)
    try:
        keep_aside(path, digest)
        note_written(path.parent, {path.name: digest})
        replace_file(path, new)
    except NotReplacedError as error:
        tell_once(f"{path} is not written: {error.strerror}")


def note_written(directory: Path, digests: Mapping[str, Digest]) -> None:
    """Before files of these names get this content: so that a crash in between makes nothing a stranger's.

    OSError when the record cannot be written.
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


def keep_changed(directory: Path, files: Mapping[str, Digest]) -> None:
    """`keep_aside` what others have put in the place of small files of our model in `directory`.

    files: what is about to be written there, by name; in folders and weights are not looked at. Nothing where
    no model of fastsft's is on record, as of an older version (csrc/storage/file_set.cpp decides).
    """
    if ARGUMENTS in written_in(directory):
        for name, digest in files.items():
            if "/" not in name and not name.endswith(".safetensors"):
                keep_aside(directory / name, digest)


def keep_aside(path: Path, fresh: Digest | None = None) -> None:
    """Rename what has the name of one of our files, and is none, to previous-<UTC time>-<name>, with a line.

    Ours is what fastsft wrote (written_files.py), and what is equal to the new content, `fresh`. A link is
    not kept: it is replaced, and its target stays. NotReplacedError where it is protected.
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
        found = path.lstat()
        same_size = stat.S_ISREG(found.st_mode) and found.st_size == len(text.encode())
        return same_size and path.read_bytes() == text.encode()
    except OSError:
        return False


def _is_alike(path: Path, fresh: Digest) -> bool:
    from fastsft import _C

    try:
        return digest_of_file(path) == fresh
    except (OSError, _C.FileError):
        return False
