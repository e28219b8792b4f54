"""Read gzip, Zstandard, CSV, Parquet and Arrow files as streams of JSON.

Files are decompressed while they are read, with limits on memory and on the expansion ratio.
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
from fastsft.sources.table_program import FIELDS_VARIABLE, REFUSED, STEMS_VARIABLE

_KIND = re.compile(r"\.(parquet|arrow|jsonl|ndjson|json|csv|tsv)(\.gz|\.zst)?$")
NOT_DATA = ("dataset_info.json", "dataset_infos.json", "state.json", "dataset_dict.json")
_PACKED_BLOCK = 1 << 9  # compressed bytes per call; Zstandard expands them to at most 16 MiB
_MAX_WINDOW = 1 << 27  # the largest Zstandard window in bytes, as in the command zstd
# The most unpacked bytes per packed byte. gzip can reach 1032; real conversations have a ratio of about ten.
MOST_RATIO = 2000
ALWAYS_ALLOWED = 1 << 28  # unpacked bytes that are allowed at any ratio


def data_suffix(name: str) -> str | None:
    """Return the suffix of a data file, such as `.jsonl.gz`; None if the file is not a data file."""
    return match[0] if (match := _KIND.search(name)) else None


def tell_rest(path: str, names: Iterable[str]) -> None:
    """Warn about files that are not read because they are not data files.

    path: the directory, for the message. names: the files' names.
    """
    rest = [name for name in names if name not in NOT_DATA and not name.lower().startswith("readme")]
    if rest:
        more = f" and {len(rest) - 5} more" if len(rest) > 5 else ""
        warn_once(f"{path}: not read, as they are no data files: {', '.join(rest[:5])}{more}")


class ExpansionLimit:
    """The limit of a file's unpacked size: MOST_RATIO times the packed size, but at least ALWAYS_ALLOWED.

    packed: returns how many packed bytes have been read so far.
    """

    def __init__(self, name: str, packed: Callable[[], int]) -> None:
        self._name, self._packed = name, packed
        self._unpacked = 0

    def count(self, size: int) -> None:
        """Add `size` unpacked bytes. ValueError if the sum exceeds the limit."""
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
        """Return at most `size` bytes; b"" at the end. EOFError for a truncated file."""
        block: bytes = self._stream.read(size)
        self._limit.count(len(block))
        return block


class ZstandardStream:
    """The content of a file with Zstandard frames.

    The stream reader of the library zstandard is not used because it does not report a truncated file.
    """

    def __init__(self, raw: BinaryIO, name: str) -> None:
        import zstandard

        self._raw = _Counted(raw)
        self._begin_frame = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW).decompressobj
        self._frame = self._begin_frame()
        self._waiting = memoryview(b"")
        self._limit = ExpansionLimit(name, lambda: self._raw.count)

    def read(self, size: int) -> bytes:
        """Return at most `size` bytes; b"" at the end. EOFError if the file ends inside a frame."""
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
_OF_TRUTHS = "label"  # a field of preference data with the values true and false
_NAMED = 20  # the most columns that a message names
_MOST_OF_A_CELL = (1 << 32) - 1  # most characters of a cell, as of a record; Python's default is 131,072


def is_csv_name(name: str) -> bool:
    """True if a file has the name of a CSV file. CSV cannot be recognised by its content."""
    return _NAME.search(name) is not None


class _LongRowError(Exception):
    pass


class CsvLines:
    """The rows of a CSV file as JSON lines. Quotes are parsed by Python's module csv.

    The separator is a tab in a .tsv file, and otherwise the first of comma, tab and semicolon that the header
    contains. A column without a name, such as the index of pandas, is skipped. Cells become texts, except
    that true and false become JSON values in the column `label` and in columns such as `train`, which tell
    whether a record is learned. An empty cell of the latter columns becomes null.

    limit: the most characters of a row. ValueError, with the line number, if the text is not UTF-8, a row has
    more or fewer fields than the header, a quote is not closed, a name in the header is duplicate, or a row
    or the header is longer than `limit`.
    """

    def __init__(self, raw: Stream, name: str, limit: int = _MOST_OF_A_CELL) -> None:
        self._name, self._limit, self._row_length = name, limit, 0
        self._text = io.TextIOWrapper(io.BufferedReader(_Raw(raw), 1 << 16), encoding="utf-8", newline="")
        self._lines = JsonLines(self._records())

    def read(self, size: int) -> bytes:
        """Return at most `size` bytes; b"" at the end."""
        return self._lines.read(size)

    def _records(self) -> Iterator[dict[str, str | bool | None]]:
        csv.field_size_limit(max(csv.field_size_limit(), _MOST_OF_A_CELL))
        line = 1  # the line on which the present row begins
        try:
            first = self._line().removeprefix("\ufeff")
            lines = iter(self._line, "")
            rows = csv.reader(chain([first], lines), delimiter=self._delimiter(first), strict=True)
            header = self._header(next(rows, []))
            columns = [(name, _reader_of(name)) for name in header]
            line, self._row_length = rows.line_num + 1, 0
            first_line = line
            for row in rows:
                if len(row) == len(header):
                    yield {name: read(cell) for (name, read), cell in zip(columns, row, strict=True) if name}
                elif row:  # an empty line is skipped
                    got = f"expected {len(header)} fields, as the header has, got {len(row)}"
                    way = "put a cell with a comma, a quote or a line break into quotes"
                    raise ValueError(f"{self._name}: line {line}: {got}; {way}")
                line, self._row_length = rows.line_num + 1, 0
            if line == first_line:
                raise ValueError(
                    f"{self._name}: expected rows below the first line, which names the columns, got none; "
                    "write a record a line, or name another file"
                )
        except _LongRowError:
            raise ValueError(
                f"{self._name}: line {line}: the row has more than {self._limit} characters, or a quote "
                f"without an end; a record may have {self._limit} bytes (--max_record_bytes): allow more, or "
                "divide it"
            ) from None
        except csv.Error as error:
            what = (
                "a quote has no end; write it, or double a quote inside of a value"
                if "unexpected end" in str(error)
                else f"{error}; put the whole cell into quotes, and double a quote inside of it"
            )
            raise ValueError(f"{self._name}: line {line}: {what}") from None
        except UnicodeDecodeError as error:
            is_wide = error.start == 0 and error.object[:2] in (b"\xff\xfe", b"\xfe\xff")
            way = ", as iconv -f UTF-16 -t UTF-8 does" if is_wide else ""
            raise ValueError(f"{self._name}: invalid UTF-8 ({error.reason}); save it as UTF-8{way}") from None

    def _line(self) -> str:
        """Return the next line of the file; "" at the end.

        _LongRowError if the present row, which may have several lines, is longer than the limit.
        """
        line = self._text.readline(self._limit - self._row_length + 1)
        self._row_length += len(line)
        if self._row_length > self._limit:
            raise _LongRowError
        return line

    def _header(self, names: list[str]) -> list[str]:
        twice = sorted(name for name, count in Counter(names).items() if count > 1)
        is_blank = not any(name.strip() for name in names)
        if twice or is_blank:
            got = "none" if is_blank else f"{_some([name or 'no name' for name in twice])} twice"
            way = "write it, as in prompt,completion" if is_blank else "give each a name of its own"
            raise ValueError(
                f"{self._name}: expected a first line with the names of its columns, got {got}; {way}"
            )
        return names

    def _delimiter(self, header: str) -> str:
        if ".tsv" in self._name.lower():
            other = next((name for sign, name in _OTHER_SIGNS.items() if sign in header), None)
            if "\t" not in header and other is not None:
                raise ValueError(
                    f"{self._name}: expected tabs between the columns, as the name says, got {other}; "
                    "name it .csv"
                )
            return "\t"
        return next((character for character in ",\t;" if character in header), ",")


_OTHER_SIGNS = {",": "commas", ";": "semicolons", "|": "bars"}


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:_NAMED])
    return shown if len(names) <= _NAMED else f"{shown} and {len(names) - _NAMED} more"


def _reader_of(name: str) -> Callable[[str], str | bool | None]:
    """Return the function that converts the cells of the column `name`."""
    from fastsft import _C

    if _C.is_train_mark(name) or name == "enable_thinking":
        return lambda cell: _truth(cell) if cell.strip() else None
    return _truth if name == _OF_TRUTHS else str


def _truth(cell: str) -> str | bool:
    return _TRUTHS.get(cell.lower(), cell)


class Stream(Protocol):
    """A source of bytes that are read in blocks."""

    def read(self, size: int, /) -> bytes:
        """Return at most `size` bytes; b"" at the end."""


class _Raw(io.RawIOBase):
    """A raw file that reads from a Stream, for the classes of `io`."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview, /) -> int:  # type: ignore[override]
        block = self._stream.read(len(buffer))
        buffer[: len(block)] = block
        return len(block)


# The fields by which the C++ core recognises preference data, in order to refuse it.
_OF_TEMPLATES = ("tools", "chat_template_kwargs", "enable_thinking")
_OF_PREFERENCE = ("chosen", "rejected", "label")
# Settings with which the worker process uses few threads and memory pools, since these count towards its
# memory limit.
_SMALL = {"ARROW_DEFAULT_MEMORY_POOL": "system", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1",
          "ARROW_IO_THREADS": "1", "MALLOC_ARENA_MAX": "2"}  # fmt: skip


def is_table(start: bytes) -> bool:
    """True if a file has the format Parquet or Arrow, either Arrow's file format or its stream format.

    start: the file's first four bytes.
    """
    return start in (b"PAR1", b"ARRO", b"\xff\xff\xff\xff")


class TableLines:
    """The records of a Parquet or Arrow file as JSON lines. A process with a memory limit reads the file.

    The first call of `read` starts the process. raw: the file, which must be seekable. ValueError if the file
    is not seekable, or if pyarrow is not installed.
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
        """Return at most `size` bytes; b"" at the end.

        OSError, with the reason, if the file cannot be read; ValueError if it can, and is of no use.
        """
        worker = self._worker or self._start()
        block = worker.receive(size)
        if not block and worker.process.wait() != 0:
            status = worker.process.returncode
            if status == REFUSED:
                raise ValueError(f"{self._name}: {self._complaint(status)}")
            raise OSError(self._complaint(status))
        try:
            self._limit.count(len(block))
        except ValueError:
            self.close()
            raise
        return block

    def close(self) -> None:
        """End the process if it is running."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.close()

    def _start(self) -> Worker:
        os.lseek(self._raw.fileno(), 0, os.SEEK_SET)  # reading the first bytes has moved the position
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
    """Return environment variables with the names of the columns to read.

    These are the fields of all data formats, of chat templates and of preference data, and the names that may
    exclude a record.
    """
    from fastsft import _C

    formats = [_C.find_data_format(name) for name in _C.data_formats()]
    names = {"id", *_OF_TEMPLATES, *_OF_PREFERENCE, *(name for entry in formats for name in entry.names)}
    return {FIELDS_VARIABLE: ",".join(sorted(names)), STEMS_VARIABLE: ",".join(_C.train_mark_stems())}
