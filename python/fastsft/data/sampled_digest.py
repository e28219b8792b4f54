"""A short digest of a large file, in milliseconds: enough to tell that two ranks read different files."""

from __future__ import annotations

import os
from pathlib import Path

from fastsft.runtime.regular_files import open_regular

_SAMPLES, _SAMPLE_BYTES = 64, 4096


def sampled_digest(path: str | Path) -> str:
    """Size, and CRC-32C of 64 pieces of 4 KiB spread evenly over the file, its begin and end among them.

    Files of up to 256 KiB are read whole. Of larger ones a change that touches no piece is not seen: other
    weights and other data are, one byte elsewhere is not. OSError for a file that cannot be read.
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
