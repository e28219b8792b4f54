"""What files of data were read as, in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastsft.runtime.terminal_text import visible
from fastsft.sources.data_files import DataFile


def format_lines(files: Sequence[DataFile], report: Any) -> list[str]:
    """A line for each file with records: "data.json: Alpaca, 52,002 records; not used: text"."""
    uses = report.formats
    names = [file.path for file in files] if len(files) == len(uses) else [""] * len(uses)
    return [
        visible(f"{name}: {describe_use(use)}")
        for name, use in zip(names, uses, strict=True)
        if use.num_records
    ]


def describe_use(use: Any) -> str:
    """Format, count and unused fields of a file (_C.FormatUse)."""
    column = f' (as "{use.column}")' if use.column else ""
    records = f"{use.num_records:,} record{'' if use.num_records == 1 else 's'}"
    unused = f"; not used: {', '.join(use.unused)}" if use.unused else ""
    return f"{use.title}{column}, {records}{unused}"
