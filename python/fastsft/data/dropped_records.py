"""Data of which too little is learned stops a run before it begins."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastsft.data.errors import DataError, format_titles
from fastsft.data.format_lines import calls_note

if TYPE_CHECKING:
    from fastsft import _C

_AFTER_A_CUT = ("ends_with_user", "empty_last_reply")  # often what another fault left


def check_dropped(path: str, report: _C.DataReport, max_dropped: float) -> None:
    """DataError when nothing is learned, or more than the fraction `max_dropped` has no label."""
    missing, total = report.num_without_labels, report.num_records
    if report.num_learned > 0 and missing <= max_dropped * total:
        return
    if total == 0:
        raise DataError(f"{path}: expected conversations, got none")
    reason = f"{missing} of {total} conversations have no label, --max_dropped {max_dropped:g} allows fewer"
    if report.num_learned == 0:
        reason = "nothing in this file is learned" + _cause(report)
    elif "no_reply_left" in report.entries:
        count = report.entries["no_reply_left"].count
        reason += f"; of {count:,} no reply begins within --model_max_length: raise it"
    calls = calls_note(report)
    raise DataError(f"{path}: {reason}{calls and f'; {calls}'}; {report.summary()}")


def _cause(report: _C.DataReport) -> str:
    counts = {name: entry.count for name, entry in report.entries.items()}
    if counts.get("no_conversations") == report.num_records:
        return f", its records are of no data format that is read: {', '.join(format_titles())}"
    if counts.get("no_reply_left") == report.num_records:
        return ", no reply begins within --model_max_length: raise it"
    told = {name: entry for name, entry in report.entries.items() if entry.reason}
    if not told:
        return ""
    most = told[max(told, key=lambda name: (told[name].count, name not in _AFTER_A_CUT))]
    return f"; {most.first[0]}: {most.reason}"
