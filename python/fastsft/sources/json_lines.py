"""Write Python records as JSON text, read in blocks.

Imports only the standard library, because the process that reads Parquet files uses this module.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal

_TEXTS = ("content", "value")  # of messages
_OBJECT = 2


class JsonLines:
    """Python records as one JSON line each, read in blocks.

    Scalars of numpy and torch become their values. Any other object without a JSON form becomes a number that
    is truthy and no text. Lone surrogates are written as escapes.
    """

    def __init__(self, records: Iterable[object]) -> None:
        self._chunks = self._write(records)
        self._waiting = b""

    def read(self, size: int) -> bytes:
        """Return at most `size` bytes; none at the end."""
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
    """Python records as one JSON array, read in blocks; a record may be any value."""

    def _write(self, records: Iterable[object]) -> Iterator[bytes]:
        yield b"["
        for number, record in enumerate(records):
            yield (b"," if number else b"") + write_line(record)
        yield b"]"


def write_line(record: object) -> bytes:
    """Return a record as a JSON line."""
    return _encoded(record) + b"\n"


def _encoded(value: object) -> bytes:
    """Return JSON in UTF-8, or in ASCII if a text has lone surrogates: their escapes reach the reader."""
    text = json.dumps(value, skipkeys=True, default=json_value, ensure_ascii=False)
    try:
        return text.encode()
    except UnicodeEncodeError:
        return json.dumps(value, skipkeys=True, default=json_value).encode()


def json_value(value: object) -> bool | int | float:
    """Return the JSON value of an object that has no JSON form.

    The number is neither 0 nor 1, because these would say whether a message is learned.
    """
    item = getattr(value, "item", None)  # of arrays and tensors with one value
    if callable(item):
        with contextlib.suppress(Exception):
            plain = item()
            if isinstance(plain, (bool, int, float)):
                return plain
    return float(value) if isinstance(value, Decimal) else _OBJECT


def without_fills(record: object) -> object:
    """Drop the null values that a table fills in: a struct has all keys that any record has at that place.

    The record's own keys stay, and so do items of lists. A message's null text stays, because a null text and
    a missing text are different faults.
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
    """Return a JSON array of records that have `sources` as their conversations."""
    return _encoded([{"conversations": source} for source in sources]).decode()
