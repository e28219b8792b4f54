"""Compute digests of files and data sets, to recognise unchanged files and to compare ranks."""

from __future__ import annotations

import contextlib
import hashlib
import json
import marshal
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from fastsft.data.interfaces import is_plain_list, is_table
from fastsft.ranks.output_directory import file_system_of
from fastsft.runtime.output_files import replace_file
from fastsft.runtime.regular_files import open_regular, read_json_object

# A file that changes twice within this time may keep the same modification time, so its digest is not stored.
_UNSAFE_SECONDS = 2.0
_WITHOUT_TIMES = {"tmpfs", "ramfs", "devtmpfs", "hugetlbfs", ""}
_MOST_ENTRY_BYTES = 1 << 16


def file_digest(path: str | Path, index: Path | None = None) -> str:
    """Return the SHA-256 of a file's content in hexadecimal digits.

    index: a directory that stores digests of earlier calls. A stored digest is used only if the file's
    device, inode, size, modification time (mtime) and inode change time (ctime, which no program can set) are
    unchanged. A digest is stored only if both times are at least two seconds old. Files on memory file
    systems are always read, because writes through a memory mapping do not change their times.
    """
    if index is not None and file_system_of(Path(path)) in _WITHOUT_TIMES:
        index = None
    entry = index / f"{_text_digest(os.path.realpath(path))}.json" if index else None
    identity = _identity(path)
    if entry is not None:
        stored = _read(entry)
        if stored.get("identity") == identity and isinstance(stored.get("sha256"), str):
            return str(stored["sha256"])
    started = time.time()
    with open_regular(path) as file:
        # A write through a memory mapping changes mtime only after the page was written back. fsync writes
        # all pages back, so that a later write through the mapping changes mtime again.
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
    """Store an entry. Errors are ignored, because the file itself can be read again."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, json.dumps(value))


# marshal's format version 0 has no references to shared objects, so that equal values have equal bytes.
_WITHOUT_REFERENCES = 0


def fingerprint_of(dataset: object) -> str | None:
    """Return the fingerprint of a datasets.Dataset; None for other objects.

    Data sets with equal contents may have different fingerprints.
    """
    return str(getattr(dataset, "_fingerprint", None)) if is_table(dataset) else None


def digest_of_items(dataset: object) -> str | None:
    """Return a digest of the items; None if reading the items would run a script's code.

    A digest is returned for lists and tuples of plain values, and for a datasets.Dataset, whose transform is
    not applied. Plain values are numbers, texts, bytes, None, arrays, tensors, and dictionaries, lists and
    tuples of plain values.
    """
    items: Iterable[Any]
    if is_table(dataset):
        items = dataset.with_format(None)
    elif is_plain_list(dataset):
        items = dataset
    else:
        return None
    hasher = hashlib.blake2b(digest_size=8)
    try:
        for item in items:
            for part in _parts(item):
                hasher.update(part)
    except (TypeError, RecursionError):
        return None
    return hasher.hexdigest()


def _parts(value: Any) -> Iterator[bytes]:
    """Yield bytes that identify a plain value. TypeError if the value is not plain."""
    try:
        yield marshal.dumps(value, _WITHOUT_REFERENCES)
        return
    except ValueError:  # raised if `value` contains an array, a tensor or an object that is not plain
        pass
    if type(value) is dict or type(value).__name__ == "BatchEncoding":
        yield marshal.dumps(list(value), _WITHOUT_REFERENCES) if _are_texts(value) else _refuse(value)
        for item in value.values():
            yield from _parts(item)
    elif type(value) in (list, tuple):
        yield f"{type(value).__name__} of {len(value)}".encode()
        for item in value:
            yield from _parts(item)
    else:
        yield _array_bytes(value)


def _are_texts(keys: Iterable[object]) -> bool:
    return all(type(key) is str for key in keys)


def _array_bytes(value: object) -> bytes:
    import numpy as np
    import torch

    if type(value) is torch.Tensor:
        flat = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        return f"{list(value.shape)} {value.dtype}".encode() + flat.numpy().tobytes()
    if isinstance(value, np.ndarray | np.generic) and value.dtype != object:
        return f"{value.shape} {value.dtype}".encode() + value.tobytes()
    return _refuse(value)


def _refuse(value: object) -> bytes:
    raise TypeError(f"{type(value).__name__} is not plain")


_SAMPLES, _SAMPLE_BYTES = 64, 4096


def sampled_digest(path: str | Path) -> str:
    """Return a quick digest of a large file: its size and the CRC-32C of 64 pieces of 4 KiB.

    Ranks compare these digests, within milliseconds, to detect that they read different files. Files up to
    256 KiB are read whole. In a larger file, a change between the pieces is not detected: other weights or
    data give another digest, but a single changed byte may not. OSError if the file cannot be read.
    """
    from fastsft import _C

    checksum = 0
    with open_regular(path, "a file of weights or data") as file:
        size = os.fstat(file.fileno()).st_size
        for offset in _offsets(size):
            checksum = _C.crc32c(os.pread(file.fileno(), _SAMPLE_BYTES, offset), checksum)
    return f"{size} bytes, {checksum:08x}"


def _offsets(size: int) -> list[int]:
    if size <= _SAMPLES * _SAMPLE_BYTES:
        return list(range(0, size, _SAMPLE_BYTES))
    last = size - _SAMPLE_BYTES
    return [last * number // (_SAMPLES - 1) for number in range(_SAMPLES)]
