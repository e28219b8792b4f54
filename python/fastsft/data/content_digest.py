"""Hashes of what files hold, kept next to the token caches so that unchanged files are not read again."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from pathlib import Path

from fastsft.ranks.output_directory import file_system_of
from fastsft.runtime.output_files import replace_file
from fastsft.runtime.regular_files import open_regular, read_json_object

# A file changed again within this time of its hash could have the same times in its inode.
_UNSAFE_SECONDS = 2.0
_WITHOUT_TIMES = {"tmpfs", "ramfs", "devtmpfs", "hugetlbfs", ""}
_MOST_ENTRY_BYTES = 1 << 16


def file_digest(path: str | Path, index: Path | None = None) -> str:
    """SHA-256 of a file's content, hexadecimal.

    index: a directory that remembers hashes. A remembered hash counts only while device, inode, size, time of
    change (mtime) and time of inode change (ctime, which no program can set) are all the same, and only when
    it was taken at least two seconds after the last of them. A file of a memory file system is always read:
    writes through a mapping change no time there.
    """
    if index is not None and file_system_of(Path(path)) in _WITHOUT_TIMES:
        index = None
    entry = index / f"{_text_digest(os.path.realpath(path))}.json" if index else None
    identity = _identity(path)
    if entry is not None:
        known = _read(entry)
        if known.get("identity") == identity and isinstance(known.get("sha256"), str):
            return str(known["sha256"])
    started = time.time()
    with open_regular(path) as file:
        # Pages that a mapping has changed get their time when they are written: changes after this show.
        with contextlib.suppress(OSError):
            os.fsync(file.fileno())
        identity = _identity(path)
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    settled = started - max(identity[3], identity[4]) / 1e9 > _UNSAFE_SECONDS
    if entry is not None and settled and identity == _identity(path):
        _write(entry, {"identity": identity, "sha256": digest})
    return digest


def _identity(path: str | Path) -> list[int]:
    status = os.stat(path)
    return [status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def _text_digest(text: str) -> str:
    return hashlib.sha256(os.fsencode(text)).hexdigest()[:32]


def _read(path: Path) -> dict[str, object]:
    try:
        return read_json_object(path, _MOST_ENTRY_BYTES)
    except ValueError:
        return {}


def _write(path: Path, value: dict[str, object]) -> None:
    """As far as possible: without the entry, the file is read again."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, json.dumps(value))
