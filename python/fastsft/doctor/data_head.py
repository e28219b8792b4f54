"""The first records of a data file, byte for byte, without reading the rest."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import Any

from fastsft.data.errors import DataError
from fastsft.sources.data_files import DataFile
from fastsft.sources.readers import MAX_RECORD_BYTES, open_reader

_BLOCK = 1 << 20
_MOST_BYTES = 1 << 26
_BOM = b"\xef\xbb\xbf"
# A string, closed or cut off by the end, or what opens, closes and divides.
_PART = re.compile(rb'"(?:[^"\\]|\\.?)*+(?:"|\Z)|[\[\]{},]', re.S)


def head_of(file: DataFile, records: int, data_format: str = "auto") -> tuple[Any, bool]:
    """The native input of at most `records` records, and whether these are all of the file.

    Places in messages about them are those of the file. DataError when one record fills 64 MiB.
    """
    from fastsft import _C

    data, is_all = _read_head(open_reader(file), records, file.path)
    head = _C.DataInput(file.path, io.BytesIO(data).read, file.weight, MAX_RECORD_BYTES, data_format)
    return head, is_all


def _read_head(read: Callable[[int], bytes], records: int, name: str) -> tuple[bytes, bool]:
    data, wanted = b"", _BLOCK
    while True:
        while len(data) < wanted and (block := read(wanted - len(data))):
            data += block
        is_all = len(data) < wanted
        cut, count = cut_records(data, records)
        if count == records and cut < len(data):
            return data[:cut] + _end(data), not data[cut:].strip(b" \n\r\t,]")
        if is_all:
            return data, True
        if wanted >= _MOST_BYTES:
            if not count:
                raise DataError(f"{name}: its first 64 MiB hold no whole record; expected JSON records")
            return data[:cut] + _end(data), False
        wanted *= 4


def cut_records(data: bytes, records: int) -> tuple[int, int]:
    """The end of the first `records` records of JSON text, and how many there are at most."""
    if not _is_array(data):
        return _cut_lines(data, records)
    depth = count = cut = 0
    for part in _PART.finditer(data):
        sign = part[0][:1]
        depth += (sign in b"[{") - (sign in b"]}")
        if depth == 1 and sign == b",":
            count, cut = count + 1, part.start()
            if count == records:
                break
    return cut, count


def _cut_lines(data: bytes, records: int) -> tuple[int, int]:
    count = cut = begin = 0
    while count < records and (end := data.find(b"\n", begin)) >= 0:
        if data[begin:end].strip():
            count, cut = count + 1, end + 1
        begin = end + 1
    return cut, count


def _is_array(data: bytes) -> bool:
    return data.removeprefix(_BOM).lstrip(b" \n\r\t")[:1] == b"["


def _end(data: bytes) -> bytes:
    return b"]" if _is_array(data) else b""
