"""Lines about labelled data; data of which too little is learned stops a run before it begins."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from fastsft.data.errors import DataError, format_titles
from fastsft.data.format_lines import calls_note, is_of_no_format

if TYPE_CHECKING:
    from fastsft import _C

_LOSES = ("unlabelled", "dropped", "excluded")
_AFTER_A_CUT = ("ends_with_user", "empty_last_reply")  # often what another fault left


def check_dropped(path: str, report: _C.DataReport, max_dropped: float) -> None:
    """DataError when nothing is learned, or more than the fraction `max_dropped` has no label."""
    missing, total = report.num_without_labels, report.num_records
    if report.num_learned > 0 and missing <= max_dropped * total:
        return
    if total == 0:
        raise DataError(f"{path}: expected conversations, got none")
    unit = "rows" if report.num_whole < total else "conversations"
    reason = f"{missing} of {total} {unit} have no label, --max_dropped {max_dropped:g} allows fewer"
    if report.num_learned == 0:
        reason = "nothing in this file is learned"
    told = [*_causes(report), calls_note(report), "fastsft inspect shows such records", report.summary()]
    raise DataError("\n  ".join([f"{path}: {reason}", *filter(None, told)]))


def _causes(report: _C.DataReport) -> Iterator[str]:
    """In words: records of no known format, conversations that are too long, and the commonest reason."""
    lost = {name: _num_lost(entry) for name, entry in report.entries.items()}
    if is_of_no_format(report):
        yield f"its records are of no data format that is read: {', '.join(format_titles())}"
    if count := lost.get("no_reply_left"):
        yield f"of {count:,} no reply begins within --model_max_length: raise it"
    told = [name for name, entry in report.entries.items() if entry.reason and lost[name]]
    if told:
        most = report.entries[max(told, key=lambda name: (lost[name], name not in _AFTER_A_CUT))]
        yield f"{most.first[0]}: {most.reason}"


def _num_lost(entry: _C.ReportEntry) -> int:
    """Records without a label that have the remark of `entry`."""
    return sum(entry.actions.get(action, 0) for action in _LOSES)


def result_lines(report: _C.DataReport, max_length: int) -> Iterator[str]:
    """Lines about labelled data: tool calls, totals and remarks, and rows cut at `max_length` tokens."""
    if calls := calls_note(report):
        yield calls
    yield report.summary()
    if cut := report.num_truncated:
        longest = f"--model_max_length {max_length}"
        yield f"{cut:,} row{' is' if cut == 1 else 's are'} cut at {longest}, or left out beyond it"


def shared_line(path: str, rows: _C.TokenDataset, trained: _C.TokenDataset) -> str:
    """A line about rows of evaluation data that are trained, too; "" where there are none."""
    from fastsft import _C

    count = _C.count_shared_rows(rows, trained)
    if count == 0:
        return ""
    whole = "all its rows" if count == len(rows) else f"{count:,} of its {len(rows):,} rows"
    return (
        f"{path}: {whole} are in the training data, too, and their loss says how well these are known by "
        "heart; evaluate on records that --data_path does not have (shares of one file, as in a.json:0.9 and "
        "a.json:0.1, have records in common)"
    )
