"""Hashes of what files hold, kept beside the token caches so that unchanged files are not read again."""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path

from fastsft.regular_files import open_regular

# A file changed again within this time of its hash could have the same times in its inode.
_UNSAFE_SECONDS = 2.0


def file_digest(path: str | Path, index: Path | None = None) -> str:
    """SHA-256 of a file's content, hexadecimal.

    index: a directory that remembers hashes. A remembered hash counts only while device, inode, size, time of
    change (mtime) and time of inode change (ctime, which no program can set) are all the same, and only when
    it was taken at least two seconds after the last of them.
    """
    entry = index / f"{_text_digest(os.path.realpath(path))}.json" if index else None
    identity = _identity(path)
    if entry is not None:
        known = _read(entry)
        if known.get("identity") == identity and isinstance(known.get("sha256"), str):
            return str(known["sha256"])
    started = time.time()
    with open_regular(path) as file:
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
        known = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def _write(path: Path, value: dict[str, object]) -> None:
    """As far as possible: without the entry, the file is read again."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(value), "utf-8")
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
