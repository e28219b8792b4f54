"""The data formats of files, in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fastsft.runtime.terminal_text import one_line
from fastsft.sources.data_files import DataFile

if TYPE_CHECKING:
    from fastsft import _C

_MOST_LINES = 5
_UNREADABLE = ("no_conversations", "not_an_object")  # remarks about records that are of no format
_CALLS = ("a message's tool_calls", "a message's function_call")


def format_lines(files: Sequence[DataFile], report: _C.DataReport | _C.ConvertSummary) -> list[str]:
    """A line for each file with records: "data.json: Alpaca, 52,002 records; not used: text".

    One line for all files of a format where they are many; none where all records are of no format, which
    count as ShareGPT.
    """
    if is_of_no_format(report):
        return []
    uses = [(file.path, use) for file, use in zip(files, report.formats, strict=True) if use.num_records]
    if len(uses) <= _MOST_LINES:
        return [one_line(f"{path}: {describe_use(use)}") for path, use in uses]
    groups: dict[tuple[str, ...], list[tuple[str, _C.FormatUse]]] = {}
    for path, use in uses:
        groups.setdefault(_kind(use), []).append((path, use))
    return [one_line(_line_of_many(group)) for group in groups.values()]


def format_totals(report: _C.DataReport) -> list[str]:
    """A line for each format: "Alpaca, 52,002 records; not used: text", the files of it together."""
    if is_of_no_format(report):
        return [f"none that is known, {report.num_records:,} record{'' if report.num_records == 1 else 's'}"]
    groups: dict[tuple[str, ...], list[_C.FormatUse]] = {}
    for use in report.formats:
        if use.num_records:
            groups.setdefault(_kind(use), []).append(use)
    totals = [(group[0], sum(use.num_records for use in group)) for group in groups.values()]
    return [one_line(describe_use(use, total)) for use, total in totals]


def is_of_no_format(report: _C.DataReport | _C.ConvertSummary) -> bool:
    """True if there are records, and none of them could be read as one of any format."""
    entries = getattr(report, "entries", {})  # a summary of `data convert` has none: it stops at the first
    found = [entries[name] for name in _UNREADABLE if name in entries]
    return 0 < report.num_records == sum(sum(entry.actions.values()) for entry in found)


def has_calls(use: _C.FormatUse) -> bool:
    """True for a file (_C.FormatUse) whose messages call tools."""
    return any(name in use.unused for name in _CALLS)


def calls_note(report: _C.DataReport | _C.ConvertSummary, template: str = "") -> str:
    """The line about replies that call tools; "" where no message has such a field.

    template: of the labels. With the model's own calls are not used where it writes none.
    """
    if not any(map(has_calls, report.formats)):
        return ""
    way = (
        "the model's own template writes none: one that does goes into chat_template.jinja of the model's "
        "directory"
        if template == "model"
        else "--template model trains calls where the model's own template writes them"
    )
    return (
        "tool calls are not trained with these labels: a turn with a reply that is a call without a text "
        f"is left out; --mask_policy spans does not learn the text next to a call either (tool_call); {way}"
    )


def describe_use(use: _C.FormatUse, count: int | None = None) -> str:
    """Format, count and unused fields of a file (_C.FormatUse); count: of several files."""
    total = use.num_records if count is None else count
    column = f' (as "{use.column}")' if use.column else ""
    unused = f"; not used: {', '.join(use.unused)}" if use.unused else ""
    return f"{use.title}{column}, {total:,} record{'' if total == 1 else 's'}{unused}"


def _kind(use: _C.FormatUse) -> tuple[str, ...]:
    return (use.title, use.column, *use.unused)


def _line_of_many(group: Sequence[tuple[str, _C.FormatUse]]) -> str:
    (path, use), more = group[0], len(group) - 1
    others = f" and {more} more file{'' if more == 1 else 's'}" if more else ""
    return f"{path}{others}: {describe_use(use, sum(each.num_records for _, each in group))}"
