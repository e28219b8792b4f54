"""Write Python records as JSON text that is read in blocks.

This module imports only the standard library, because table_program.py uses it in an isolated process.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal

_TEXTS = ("content", "value")  # the fields with a message's text
_OBJECT = 2


class JsonLines:
    """Python records as JSON lines, read in blocks.

    Scalars of numpy and torch are written as their values. Any other object that JSON cannot encode is
    written as a number other than 0 and 1. Lone surrogates are written as escapes.
    """

    def __init__(self, records: Iterable[object]) -> None:
        self._chunks = self._write(records)
        self._waiting = b""

    def read(self, size: int) -> bytes:
        """Return at most `size` bytes; b"" at the end."""
        parts, length = [self._waiting], len(self._waiting)
        while length < size and (chunk := next(self._chunks, b"")):
            parts.append(chunk)
            length += len(chunk)
        block = b"".join(parts)
        self._waiting = block[size:]
        return block[:size]

    def _write(self, records: Iterable[object]) -> Iterator[bytes]:
        return map(write_line, records)


class JsonArray(JsonLines):
    """Python records as a JSON array, read in blocks. A record may be any value."""

    def _write(self, records: Iterable[object]) -> Iterator[bytes]:
        yield b"["
        for number, record in enumerate(records):
            yield (b"," if number else b"") + write_line(record)
        yield b"]"


def write_line(record: object) -> bytes:
    """Return a record as a line of JSON, in UTF-8."""
    return _encoded(record) + b"\n"


def _encoded(value: object) -> bytes:
    """Return `value` as JSON in UTF-8, or in ASCII with escapes if a text has a lone surrogate."""
    text = json.dumps(value, skipkeys=True, default=json_value, ensure_ascii=False)
    try:
        return text.encode()
    except UnicodeEncodeError:
        return json.dumps(value, skipkeys=True, default=json_value).encode()


def json_value(value: object) -> bool | int | float:
    """Return a JSON value for an object that JSON cannot encode.

    For a scalar of numpy or torch this is its value. For any other object it is a number other than 0 and 1,
    because 0 and 1 could tell whether a message is learned.
    """
    item = getattr(value, "item", None)  # a method of arrays and tensors, which need to have a single value
    if callable(item):
        with contextlib.suppress(Exception):
            plain = item()
            if isinstance(plain, (bool, int, float)):
                return plain
    return float(value) if isinstance(value, Decimal) else _OBJECT


def without_fills(record: object) -> object:
    """Return the record without the nulls that a table adds: a struct in a table has the keys of all records.

    The record's own keys and the items of lists are kept. A message's null text is kept, too, because a null
    text and a missing text are reported as different issues.
    """
    if not isinstance(record, Mapping):
        return record
    return {
        name: [_of_message(item) for item in value] if isinstance(value, list) else _of_struct(value)
        for name, value in record.items()
    }


def _of_message(item: object) -> object:
    if not isinstance(item, dict):
        return _of_struct(item)
    return {name: _of_struct(value) for name, value in item.items() if value is not None or name in _TEXTS}


def _of_struct(value: object) -> object:
    if isinstance(value, dict):
        return {name: _of_struct(inner) for name, inner in value.items() if inner is not None}
    if isinstance(value, list):
        return [_of_struct(item) for item in value]
    return value


def write_conversations(sources: Sequence[object]) -> str:
    """Return a JSON array of records whose conversations are `sources`."""
    return _encoded([{"conversations": source} for source in sources]).decode()
