"""Record of files that fastsft wrote into an output directory: lengths and checksums, in a file there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

from fastsft.runtime.regular_files import read_json_object

RECORD_NAME = ".fastsft-files.json"

Digest: TypeAlias = tuple[int, int]  # bytes and CRC-32C


def digest_of(content: bytes | memoryview) -> Digest:
    """Of a content that is about to be written."""
    from fastsft import _C

    return len(bytes(content)), int(_C.crc32c(bytes(content)))


def digest_of_file(path: str | Path) -> Digest:
    """Of a regular file. OSError when it cannot be read."""
    from fastsft import _C

    found = _C.digest_file(str(path))
    return int(found.size), int(found.crc32c)


def is_written(path: Path) -> bool:
    """True if the regular file `path` is as fastsft wrote it."""
    from fastsft import _C

    digests = written_in(path.parent).get(path.name, [])
    try:
        return bool(digests) and digest_of_file(path) in digests
    except (OSError, _C.FileError):  # one that this process may not read
        return False


def _digest_there(path: Path) -> Digest | None:
    from fastsft import _C

    try:
        return digest_of_file(path)
    except (OSError, _C.FileError):
        return None


def written_in(directory: Path) -> dict[str, list[Digest]]:
    """By name, what fastsft has written into the directory; {} without a record that fastsft wrote."""
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
    """Return the record as JSON, with this content of these files added.

    Earlier content stays on record until its file is written again: a crash in between loses neither.
    """
    record = written_in(directory)
    for name, digest in digests.items():
        known = record.get(name, [])
        there = _digest_there(directory / name) if len(known) > 1 else None
        kept = [there] if there in known else known[-1:]
        record[name] = [*(other for other in kept if other != digest), digest]
    return json.dumps(record, sort_keys=True) + "\n"
