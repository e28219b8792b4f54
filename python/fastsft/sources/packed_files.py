"""Compressed data files, unpacked as they are read: bounded in memory, and in what comes of how much."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from typing import BinaryIO

_PACKED_BLOCK = 1 << 9  # Zstandard unpacks it to 16 MiB at most
_MAX_WINDOW = 1 << 27  # bytes that Zstandard looks back; what its own tool accepts
# What comes of a byte. gzip makes at most 1032 of one, real conversations have some ten.
MOST_RATIO = 2000
ALWAYS_ALLOWED = 1 << 28  # bytes, whatever they come of


class ExpansionLimit:
    """Counts what comes out. ValueError when it is more than MOST_RATIO times what went in.

    packed: bytes that went in so far.
    """

    def __init__(self, name: str, packed: Callable[[], int]) -> None:
        self._name, self._packed = name, packed
        self._unpacked = 0

    def count(self, size: int) -> None:
        """`size` more bytes."""
        self._unpacked += size
        if self._unpacked > max(ALWAYS_ALLOWED, MOST_RATIO * self._packed()):
            raise ValueError(
                f"{self._name}: {self._packed()} bytes expand to {self._unpacked} and more, over "
                f"{MOST_RATIO} times as many; if that is meant, unpack the file and give the unpacked one"
            )


class GzipStream:
    """Contents of a gzip file."""

    def __init__(self, raw: BinaryIO, name: str) -> None:
        counted = _Counted(raw)
        self._stream = gzip.GzipFile(fileobj=counted)  # type: ignore[call-overload]
        self._limit = ExpansionLimit(name, lambda: counted.count)

    def read(self, size: int) -> bytes:
        """At most `size` bytes; none at the end. EOFError for a file that is cut."""
        block: bytes = self._stream.read(size)
        self._limit.count(len(block))
        return block


class ZstandardStream:
    """Unpacks frames one after the other. The library's own reader ends a cut file without a word."""

    def __init__(self, raw: BinaryIO, name: str) -> None:
        import zstandard

        self._raw = _Counted(raw)
        self._begin_frame = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW).decompressobj
        self._frame = self._begin_frame()
        self._waiting = memoryview(b"")
        self._limit = ExpansionLimit(name, lambda: self._raw.count)

    def read(self, size: int) -> bytes:
        """At most `size` bytes; none at the end. EOFError where the file ends inside a frame."""
        while not self._waiting:
            packed = (self._frame.unused_data if self._frame.eof else b"") or self._raw.read(_PACKED_BLOCK)
            if not packed:
                if self._frame.eof:
                    return b""
                raise EOFError("it ends inside a Zstandard frame")
            if self._frame.eof:
                self._frame = self._begin_frame()
            self._waiting = memoryview(self._frame.decompress(packed))
        block, self._waiting = bytes(self._waiting[:size]), self._waiting[size:]
        self._limit.count(len(block))
        return block


class _Counted:
    def __init__(self, raw: BinaryIO) -> None:
        self._raw = raw
        self.count = 0

    def read(self, size: int = -1) -> bytes:
        block = self._raw.read(size)
        self.count += len(block)
        return block
