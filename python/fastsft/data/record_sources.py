"""The conversations of records, as FastChat takes them out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastsft.data.errors import raise_first


def sources_of(raw_data: Sequence[Any]) -> list[Any]:
    """`record["conversations"]` of each; DataError names a record that has none."""
    sources = []
    for number, record in enumerate(raw_data):
        try:
            sources.append(record["conversations"])
        except (KeyError, TypeError, IndexError) as error:
            kind = type(error).__name__
            reason = 'no "conversations"' if kind == "KeyError" else "record is not an object"
            raise_first([_RecordFault(kind, f"record {number}: {reason}")])
    return sources


class _RecordFault:
    remark = ""
    always_stops = False

    def __init__(self, kind: str, text: str) -> None:
        self.kind = kind
        self._text = text

    def __str__(self) -> str:
        return self._text
