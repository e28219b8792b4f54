"""The conversations of records, as FastChat takes them out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastsft import _C
from fastsft.data.errors import raise_first
from fastsft.sources.json_lines import write_line


def sources_of(raw_data: Sequence[Any]) -> list[Any]:
    """`record["conversations"]` of each; DataError names a record that has none."""
    return [_source_of(record, number) for number, record in enumerate(raw_data)]


def learned_sources(raw_data: Sequence[Any]) -> list[Any]:
    """`sources_of` of records of which every reply may be learned.

    DataError for one with a field that says otherwise: labels of conversations do not see it.
    """
    sources, plain = [], {"conversations", "id"}  # names of fields that never say so
    for number, record in enumerate(raw_data):
        sources.append(_source_of(record, number))
        if isinstance(record, Mapping) and not record.keys() <= plain:
            _check_fields(record, number, plain)
    return sources


def _source_of(record: Any, number: int) -> Any:
    try:
        return record["conversations"]
    except (KeyError, TypeError, IndexError) as error:
        kind = type(error).__name__
        reason = 'no "conversations"' if kind == "KeyError" else "record is not an object"
        raise_first([_RecordFault(kind, f"record {number}: {reason}")])
        raise


def _check_fields(record: Mapping[object, object], number: int, plain: set[str]) -> None:
    for name in record.keys() - plain:
        value = record[name]
        if not isinstance(name, str):
            continue
        if not isinstance(value, Mapping) and not _C.is_train_mark(name):
            plain.add(name)
            continue
        problem = _C.judge_train_mark(name, write_line(value).decode("utf-8", "replace").strip())
        if problem:
            raise_first([_RecordFault("ValueError", f"record {number}: {problem}")])


class _RecordFault:
    remark = ""
    always_stops = False

    def __init__(self, kind: str, text: str) -> None:
        self.kind = kind
        self._text = text

    def __str__(self) -> str:
        return self._text
