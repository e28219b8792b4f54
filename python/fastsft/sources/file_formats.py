"""File formats other than plain JSON, as streams of JSON lines: gzip, Zstandard, CSV, Parquet and Arrow.

All are unpacked while they are read, within limits on memory and on a file's expansion.
"""

from __future__ import annotations

import csv
import gzip
import io
import os
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import BinaryIO, Protocol

from fastsft.runtime.messages import warn_once
from fastsft.runtime.worker import Worker, package_folder
from fastsft.sources.json_lines import JsonLines
from fastsft.sources.table_program import FIELDS_VARIABLE, STEMS_VARIABLE

_KIND = re.compile(r"\.(parquet|arrow|jsonl|ndjson|json|csv|tsv)(\.gz|\.zst)?$")
NOT_DATA = ("dataset_info.json", "dataset_infos.json", "state.json", "dataset_dict.json")
_PACKED_BLOCK = 1 << 9  # Zstandard unpacks it to 16 MiB at most
_MAX_WINDOW = 1 << 27  # bytes that Zstandard looks back; what its own tool accepts
# Unpacked bytes of a packed byte. gzip reaches 1032; real conversations reach about ten.
MOST_RATIO = 2000
ALWAYS_ALLOWED = 1 << 28  # unpacked bytes, at any ratio


def data_suffix(name: str) -> str | None:
    """Return the suffix that makes a file data, such as `.jsonl.gz`; None for other files."""
    return match[0] if (match := _KIND.search(name)) else None


def tell_rest(path: str, names: Iterable[str]) -> None:
    """Warn about files that are not read, in case one of them was meant as data."""
    rest = [name for name in names if name not in NOT_DATA and not name.lower().startswith("readme")]
    if rest:
        more = f" and {len(rest) - 5} more" if len(rest) > 5 else ""
        warn_once(f"{path}: not read, as they are no data files: {', '.join(rest[:5])}{more}")


class ExpansionLimit:
    """Counts unpacked bytes. ValueError beyond MOST_RATIO times the packed bytes.

    packed: returns the packed bytes so far.
    """

    def __init__(self, name: str, packed: Callable[[], int]) -> None:
        self._name, self._packed = name, packed
        self._unpacked = 0

    def count(self, size: int) -> None:
        """Add `size` unpacked bytes."""
        self._unpacked += size
        if self._unpacked > max(ALWAYS_ALLOWED, MOST_RATIO * self._packed()):
            raise ValueError(
                f"{self._name}: {self._packed()} bytes expand to {self._unpacked} and more, over "
                f"{MOST_RATIO} times as many; if that is meant, unpack the file and give the unpacked one"
            )


class GzipStream:
    """The content of a gzip file."""

    def __init__(self, raw: BinaryIO, name: str) -> None:
        counted = _Counted(raw)
        self._stream = gzip.GzipFile(fileobj=counted)  # type: ignore[call-overload]
        self._limit = ExpansionLimit(name, lambda: counted.count)

    def read(self, size: int) -> bytes:
        """Return at most `size` bytes; none at the end. EOFError for a truncated file."""
        block: bytes = self._stream.read(size)
        self._limit.count(len(block))
        return block


class ZstandardStream:
    """The content of consecutive Zstandard frames. The library's own reader ignores a truncated end."""

    def __init__(self, raw: BinaryIO, name: str) -> None:
        import zstandard

        self._raw = _Counted(raw)
        self._begin_frame = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW).decompressobj
        self._frame = self._begin_frame()
        self._waiting = memoryview(b"")
        self._limit = ExpansionLimit(name, lambda: self._raw.count)

    def read(self, size: int) -> bytes:
        """Return at most `size` bytes; none at the end. EOFError if the file ends inside a frame."""
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


_NAME = re.compile(r"\.(csv|tsv)(\.(gz|zst))?$", re.IGNORECASE)
_TRUTHS = {"true": True, "false": False}
_OF_TRUTHS = "label"  # a field with true or false
_NAMED = 20  # columns in a message
_MOST_OF_A_CELL = (1 << 32) - 1  # a record's limit; Python's default is 131,072 characters


def is_csv_name(name: str) -> bool:
    """True if the name is that of a CSV file; its content cannot tell."""
    return _NAME.search(name) is not None


class _LongRowError(Exception):
    pass


class CsvLines:
    """The rows of a CSV file as JSON objects, with the quoting of Python's csv.

    Fields are separated by commas; by tabs in .tsv; by tabs or semicolons if the header has no comma. A
    column without a name, such as pandas' index, is skipped. Values are texts, except true and false in
    `label` and in columns such as `train` that say whether a record is learned; an empty cell there is null.
    ValueError naming the line for text that is not UTF-8, a row whose width differs from the header's, an
    unclosed quote, a duplicate name in the header, and a row or header of more than `limit` characters, which
    is not read to its end.
    """

    def __init__(self, raw: Stream, name: str, limit: int = _MOST_OF_A_CELL) -> None:
        self._name, self._limit, self._row_length = name, limit, 0
        self._text = io.TextIOWrapper(io.BufferedReader(_Raw(raw), 1 << 16), encoding="utf-8", newline="")
        self._lines = JsonLines(self._records())

    def read(self, size: int) -> bytes:
        """Return at most `size` bytes; none at the end."""
        return self._lines.read(size)

    def _records(self) -> Iterator[dict[str, str | bool | None]]:
        csv.field_size_limit(max(csv.field_size_limit(), _MOST_OF_A_CELL))
        line = 1  # on which the row begins
        try:
            first = self._line().removeprefix("\ufeff")
            lines = iter(self._line, "")
            rows = csv.reader(chain([first], lines), delimiter=self._delimiter(first), strict=True)
            header = self._header(next(rows, []))
            columns = [(name, _reader_of(name)) for name in header]
            line, self._row_length = rows.line_num + 1, 0
            for row in rows:
                if len(row) == len(header):
                    yield {name: read(cell) for (name, read), cell in zip(columns, row, strict=True) if name}
                elif row:  # no empty line
                    got = f"expected {len(header)} fields, as the header has, got {len(row)}"
                    raise ValueError(f"{self._name}: line {line}: {got}")
                line, self._row_length = rows.line_num + 1, 0
        except _LongRowError:
            raise ValueError(
                f"{self._name}: line {line}: the row has more than {self._limit} characters, or a quote "
                f"without an end; a record may have {self._limit} bytes (--max_record_bytes): allow more, or "
                "divide it"
            ) from None
        except csv.Error as error:
            what = "a quote has no end" if "unexpected end" in str(error) else error
            raise ValueError(f"{self._name}: line {line}: {what}") from None
        except UnicodeDecodeError as error:
            raise ValueError(f"{self._name}: invalid UTF-8 ({error.reason}); save it as UTF-8") from None

    def _line(self) -> str:
        """Return the next line of the row; "" at the end. _LongRowError before a row passes the limit."""
        line = self._text.readline(self._limit - self._row_length + 1)
        self._row_length += len(line)
        if self._row_length > self._limit:
            raise _LongRowError
        return line

    def _header(self, names: list[str]) -> list[str]:
        twice = sorted(name for name, count in Counter(names).items() if count > 1)
        if twice or not any(names):
            got = f"{_some(twice)} twice" if twice else "none"
            raise ValueError(f"{self._name}: expected a first line with the names of its columns, got {got}")
        return names

    def _delimiter(self, header: str) -> str:
        if ".tsv" in self._name.lower():
            return "\t"
        return next((character for character in ",\t;" if character in header), ",")


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:_NAMED])
    return shown if len(names) <= _NAMED else f"{shown} and {len(names) - _NAMED} more"


def _reader_of(name: str) -> Callable[[str], str | bool | None]:
    """Return the function that reads the cells of a column."""
    from fastsft import _C

    if _C.is_train_mark(name):
        return lambda cell: _truth(cell) if cell.strip() else None
    return _truth if name == _OF_TRUTHS else str


def _truth(cell: str) -> str | bool:
    return _TRUTHS.get(cell.lower(), cell)


class Stream(Protocol):
    """A source of blocks of bytes."""

    def read(self, size: int, /) -> bytes:
        """Return at most `size` bytes; none at the end."""


class _Raw(io.RawIOBase):
    """Adapts a Stream to the classes of `io`."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview, /) -> int:  # type: ignore[override]
        block = self._stream.read(len(buffer))
        buffer[: len(block)] = block
        return len(block)


# The core recognises preference data by these fields, and refuses it.
_OF_PREFERENCE = ("chosen", "rejected", "label")
# Threads and reserves of the library count as memory.
_SMALL = {"ARROW_DEFAULT_MEMORY_POOL": "system", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1",
          "ARROW_IO_THREADS": "1", "MALLOC_ARENA_MAX": "2"}  # fmt: skip


def is_table(start: bytes) -> bool:
    """True if a file begins as Parquet, or as Arrow: a stream (which `datasets` saves) or a file."""
    return start in (b"PAR1", b"ARRO", b"\xff\xff\xff\xff")


class TableLines:
    """The records of a Parquet or Arrow file as JSON lines, read by a process with a memory limit.

    The process starts with the first read. raw: the file, seekable. ValueError without pyarrow.
    """

    def __init__(self, raw: BinaryIO, name: str) -> None:
        if not raw.seekable():
            raise ValueError(
                f"{name}: Parquet and Arrow cannot be read from a pipe, which has no way back; name the file"
            )
        self._raw, self._name = raw, name
        package_folder("pyarrow")
        self._worker: Worker | None = None
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 (as long as the process)
        size = os.fstat(raw.fileno()).st_size
        self._limit = ExpansionLimit(name, lambda: size)

    def read(self, size: int) -> bytes:
        """Return at most `size` bytes, none at the end. OSError says how a file is damaged."""
        worker = self._worker or self._start()
        block = worker.receive(size)
        if not block and worker.process.wait() != 0:
            raise OSError(self._complaint(worker.process.returncode))
        try:
            self._limit.count(len(block))
        except ValueError:
            self.close()
            raise
        return block

    def close(self) -> None:
        """End the process, if it runs."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.close()

    def _start(self) -> Worker:
        os.lseek(self._raw.fileno(), 0, os.SEEK_SET)  # a peek has moved the position
        self._worker = Worker(
            "fastsft.sources.table_program", ("pyarrow", "numpy"), {**_SMALL, **_fields()},
            stdin=self._raw, stderr=self._said,
        )  # fmt: skip
        return self._worker

    def _complaint(self, status: int) -> str:
        self._said.seek(0)
        lines = self._said.read(1 << 16).decode("utf-8", "replace").splitlines()
        if status < 0:
            return f"its reader was ended by signal {-status}, as for lack of memory"
        return lines[-1] if lines else f"its reader ended with status {status}"


def _fields() -> dict[str, str]:
    """Return variables that name the columns to read: fields of data formats and of preference data."""
    from fastsft import _C

    formats = [_C.find_data_format(name) for name in _C.data_formats()]
    names = {"id", *_OF_PREFERENCE, *(name for entry in formats for name in entry.names)}
    return {FIELDS_VARIABLE: ",".join(sorted(names)), STEMS_VARIABLE: ",".join(_C.train_mark_stems())}
