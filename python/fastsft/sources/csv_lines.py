"""The rows of a CSV file as JSON lines: an object for each, whose values are texts."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Protocol

from fastsft.sources.json_lines import JsonLines

_NAME = re.compile(r"\.(csv|tsv)(\.(gz|zst))?$", re.IGNORECASE)
_TRUTHS = {"true": True, "false": False}
_OF_TRUTHS = "label"  # a field of records that holds true or false
_NAMED = 20  # columns in a message
_MOST_OF_A_CELL = (1 << 32) - 1  # as of a record; Python's own limit is 131,072 characters


def is_csv_name(name: str) -> bool:
    """A name by which a file is CSV: nothing in such a file says so."""
    return _NAME.search(name) is not None


class _LongRowError(Exception):
    pass


class CsvLines:
    """Reads a header and rows as Python's csv does: quotes may hold line breaks, doubled quotes are quotes.

    Fields are between commas; in .tsv, and where the header has no comma, between tabs or semicolons. A
    column without a name, as pandas writes its index, is not read. In `label`, and columns such as `train`
    that say whether a record is learned, true and false are no texts; in these an empty cell says nothing.
    ValueError naming the line for what is not UTF-8, rows of another width than the header's, a
    quote without an end, a header with a name twice, and a row or header of more than `limit` characters,
    which is not read to its end.
    """

    def __init__(self, raw: Stream, name: str, limit: int = _MOST_OF_A_CELL) -> None:
        self._name, self._limit, self._row_length = name, limit, 0
        self._text = io.TextIOWrapper(io.BufferedReader(_Raw(raw), 1 << 16), encoding="utf-8", newline="")
        self._lines = JsonLines(self._records())

    def read(self, size: int) -> bytes:
        """At most `size` bytes; none at the end."""
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
        """The next line of the row; "" at the end. _LongRowError before a row passes the limit."""
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
        return next((each for each in ",\t;" if each in header), ",")


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:_NAMED])
    return shown if len(names) <= _NAMED else f"{shown} and {len(names) - _NAMED} more"


def _reader_of(name: str) -> Callable[[str], str | bool | None]:
    """The reader of the cells in a column of this name."""
    from fastsft import _C

    if _C.is_train_mark(name):
        return lambda cell: _truth(cell) if cell.strip() else None
    return _truth if name == _OF_TRUTHS else str


def _truth(cell: str) -> str | bool:
    return _TRUTHS.get(cell.lower(), cell)


class Stream(Protocol):
    """A source of blocks of bytes."""

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes; none at the end."""


class _Raw(io.RawIOBase):
    """A stream for the classes of io."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview, /) -> int:  # type: ignore[override]
        block = self._stream.read(len(buffer))
        buffer[: len(block)] = block
        return len(block)
