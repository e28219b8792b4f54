"""The rows that bench_train.py trains on, all from real conversations."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import cycle, islice
from pathlib import Path
from typing import Any

Record = dict[str, Any]
CHARACTERS_PER_TOKEN = 6  # more than any natural text needs: a row of this length is full


def usable(records: Iterable[Record]) -> list[Record]:
    """Conversations in which human and gpt alternate, human first, and somebody answers."""
    roles = ["human", "gpt"]
    return [
        record
        for record in records
        if len(record["conversations"]) > 1
        and all(turn["from"] == roles[i % 2] for i, turn in enumerate(record["conversations"]))
    ]


def full_rows(records: Iterable[Record], count: int, max_length: int) -> list[Record]:
    """`count` conversations that right truncation cuts to exactly `max_length` tokens each.

    Each is several real conversations behind one another; the source begins again when it ends.
    """
    source = cycle([record["conversations"] for record in records if len(record["conversations"]) % 2 == 0])
    rows = []
    for index in range(count):
        turns: list[Record] = []
        while sum(len(turn["value"]) for turn in turns) < CHARACTERS_PER_TOKEN * max_length:
            turns += next(source)
        rows.append({"id": f"full_{index}", "conversations": turns})
    return rows


def make(workload: str, data: Path, folder: Path, count: int, max_length: int) -> Path:
    """Writes `count` conversations for "full", "multi_turn" or "dummy" rows and returns the file."""
    records = usable(json.loads(data.read_text()))
    full = workload == "full"
    rows = full_rows(records, count, max_length) if full else list(islice(cycle(records), count))
    path = folder / f"{workload}.json"
    path.write_text(json.dumps(rows))
    return path
