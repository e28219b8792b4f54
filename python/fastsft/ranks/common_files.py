"""Check that all ranks read the same bytes of large files: by what the files are, else by their checksums."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeAlias

from fastsft.ranks.agreement import Agreement
from fastsft.ranks.machine import machine
from fastsft.runtime.messages import tell
from fastsft.runtime.regular_files import check_regular

_TOLD_BYTES = 1 << 30  # from here on a line says that files are read

# Machine, device, inode, bytes and time of the last change: who has them all alike reads one file.
Identity: TypeAlias = tuple[str, int, int, int, int]


def common_digests(what: str, find: Callable[[], Iterable[Path]]) -> dict[str, str]:
    """A text by name of file, alike on two ranks only where the bytes are; collective.

    find: the files, on every rank for itself; `what` begins the message when a rank cannot read them. Files
    that are one and the same on all ranks, or differ in length, are not read; of others every byte is, once
    for each file however many ranks share it. ValueError on every rank when one cannot read its files.
    """
    agreement = Agreement(what)
    paths = agreement.attempt(lambda: {path.name: path for path in find()}) or {}
    mine = agreement.attempt(lambda: {name: identity(path) for name, path in paths.items()})
    everyone: list[dict[str, Identity]] = [found or {} for found in agreement.settle(mine)]
    own = everyone[agreement.rank]
    readers = _readers(everyone, agreement.rank)
    _tell_of([own[name] for name in _differing(everyone)], what)
    to_read = [paths[name] for name, reader in readers.items() if reader == agreement.rank]
    checksums = agreement.settle(agreement.attempt(lambda: _checksums(to_read)))
    texts = {}
    for name, found in own.items():
        checksum = (checksums[readers[name]] or {})[name] if name in readers else ""
        texts[name] = f"{found[3]} bytes{checksum}"
    return texts


def identity(path: Path) -> Identity:
    """Of a file, links followed. ValueError for what is no regular file."""
    check_regular(path, "a file of weights")
    found = os.stat(path)
    return machine(), found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _differing(everyone: list[dict[str, Identity]]) -> list[str]:
    """Names of files that all ranks have, with one length and not as one file."""
    first, *rest = everyone
    shared = [name for name in first if all(name in other for other in rest)]
    different = [name for name in shared if any(other[name] != first[name] for other in rest)]
    return [name for name in different if len({found[name][3] for found in everyone}) == 1]


def _readers(everyone: list[dict[str, Identity]], rank: int) -> dict[str, int]:
    """The reader of each file that `rank` has, by name: the files of ranks that share them are dealt out."""
    readers = {}
    for number, name in enumerate(_differing(everyone)):
        mine = everyone[rank][name]
        sharing = [other for other, found in enumerate(everyone) if found[name] == mine]
        readers[name] = sharing[number % len(sharing)]
    return readers


def _checksums(paths: list[Path]) -> dict[str, str]:
    from fastsft import _C

    return {path.name: f", checksum {_C.digest_file(str(path)).crc32c:08x}" for path in paths}


def _tell_of(files: list[Identity], what: str) -> None:
    """Large files take a while; rank 0 says so."""
    total = sum(found[3] for found in files)
    if total >= _TOLD_BYTES:
        tell(
            f"{what}: ranks have copies of their own; {total / 1e9:.1f} GB are read to see that all are alike"
        )
