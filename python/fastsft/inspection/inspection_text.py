"""Shows an inspection as text: records with marks around their targets, a summary, and histograms."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from fastsft.data.chat.labelling import describe_labels
from fastsft.data.label_report import calls_note, format_totals
from fastsft.reporting.chart import Bar
from fastsft.runtime.terminal import folded, one_line, visible

if TYPE_CHECKING:
    from fastsft.inspection.inspected import InspectedData, InspectedRecord, Part

_RESET = "\x1b[0m"
# Black text on a coloured background is readable on dark and on light terminals.
_STYLES = {"learned": "\x1b[30;42m", "end": "\x1b[30;43m", "cut": "\x1b[2;9m"}
Paint = Callable[[str, str], str]  # function that returns a text in a style
_TITLE, _DIM, _ALARM = "\x1b[1m", "\x1b[2m", "\x1b[1;31m"
_BEGIN, _END, _CUT = "\u27e6", "\u27e7", "\u2702"
_ALARMING = ("dropped", "excluded", "stopped", "unlabelled")


def inspection_text(
    inspection: InspectedData, *, colour: bool = False, tokens: bool = False, width: int | None = None
) -> str:
    """Return the records and the summary as text.

    colour: True to mark targets by colours instead of brackets. tokens: True to print each token on its own
    line. width: column count to which lines are wrapped, except text of the data; None: no wrapping.
    """
    parts = [record_text(record, colour=colour, tokens=tokens, width=width) for record in inspection.records]
    shown = f"{len(parts)} of {inspection.num_matching:,} matching records" if parts else "no record is shown"
    foot = [f"{shown}; {_legend(colour)}"] if parts else [shown]
    return "\n".join([*parts, summary_text(inspection, colour=colour, width=width), *foot])


def summary_text(inspection: InspectedData, *, colour: bool = False, width: int | None = None) -> str:
    """Return the data set's numbers as text: records, tokens, padding, reasons, histograms and faults."""
    title = _painter(colour)
    lines = [
        title("data set", _TITLE),
        *(folded(line, width, indent=12) for line in _numbers(inspection)),
        *(folded(line, width, indent=25) for line in _reasons(inspection, title)),
        *_histogram(f"{inspection.unit} of a row", inspection.lengths, title),
        *_histogram(f"learned {inspection.unit} of a row", inspection.learned, title),
        *(title(folded(line, width, indent=2), _ALARM) for line in verdict(inspection)),
    ]
    return "\n".join(lines)


def verdict(inspection: InspectedData) -> list[str]:
    """Return the reasons why training would stop or learn nothing, as lines; empty if there are none."""
    lines = []
    if inspection.num_faults:
        stopping = [fault for fault in inspection.faults if fault.always_stops]
        first = [*stopping, *inspection.faults][0]
        lines.append(
            f"training would stop: {inspection.num_faults:,} records cannot be read; the first: "
            f"{one_line(first.file)}: {one_line(str(first))}"
        )
        of_fastchat = inspection.labelling["mask_policy"] == "fastchat"
        keeps = ", --mask_policy spans keeps what is sound of them" if of_fastchat else ""
        if len(stopping) < len(inspection.faults):
            others = "the others" if stopping else "them"
            lines.append(f"  --on_bad_sample skip leaves {others} out{keeps}")
        if stopping:
            lines.append(f"  {len(stopping):,} of them stop a run whatever --on_bad_sample says")
    if inspection.report.num_learned == 0:
        lines.append("nothing is learned of this data")
    if inspection.unit != "tokens" and inspection.report.num_excluded:
        lines.append(
            f"{inspection.report.num_excluded:,} records are left out by --mask_policy spans; FastChat's "
            "labels may stop at such, and whether tool calls are learned, the model's template decides: "
            "--model DIR tells"
        )
    return lines


def record_text(
    record: InspectedRecord, *, colour: bool = False, tokens: bool = False, width: int | None = None
) -> str:
    """Return a record as text: a headline, its remarks, and its text or its tokens."""
    paint = _painter(colour)
    headline = folded(_headline(record), width, indent=2)
    lines = [paint(headline, _ALARM if record.outcome in _ALARMING else _TITLE)]
    lines += [paint(folded(f"  {line}", width, indent=4), _DIM) for line in _remarks(record)]
    if tokens:
        lines += _token_lines(record, paint)
    elif record.tokens:
        lines.append("".join(_marked(part, colour) for part in record.parts()))
    if not record.tokens:
        lines += [f"{one_line(role) or '(no role)'}: {visible(text)}" for role, text in record.messages]
    if record.num_cut:
        lines.append(paint(f"  {_CUT} {record.num_cut:,} tokens beyond the limit are cut", _DIM))
    return "\n".join(lines) + "\n"


def turn_ends(record: InspectedRecord) -> str:
    return f"{record.num_turn_ends} turn end{'' if record.num_turn_ends == 1 else 's'}"


def percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "0.0 %"


def _numbers(inspection: InspectedData) -> Iterator[str]:
    report, labels = inspection.report, inspection.labelling
    of_tokens = inspection.unit == "tokens"
    yield f"  data      {one_line(inspection.data)}"
    for line in format_totals(report):
        yield f"  format    {line}"
    if calls := calls_note(report, labels["template"]):
        yield f"  note      {calls}"
    yield f"  model     {one_line(inspection.model)}" + (
        "" if of_tokens else ": lengths are bytes; --model DIR gives tokens, and FastChat's labels"
    )
    limit = f", at most {inspection.width:,} tokens" if of_tokens else ""
    yield f"  labels    {describe_labels(labels, limit)}"
    is_divided = report.num_whole < report.num_records
    of = f" of {report.num_whole:,} records" if is_divided else ""
    yield (
        f"  {'rows' if is_divided else 'records':<9} {report.num_records:,}{of}: {report.num_kept:,} kept, "
        f"{report.num_without_labels:,} without a label "
        f"({percent(report.num_without_labels, report.num_records)}; {report.num_dropped:,} dropped, "
        f"{report.num_excluded:,} excluded); {report.num_salvaged:,} salvaged, "
        f"{report.num_truncated:,} truncated"
    )
    yield (
        f"  {inspection.unit:<9} {report.num_tokens:,}, of them learned {report.num_learned:,} "
        f"({percent(report.num_learned, report.num_tokens)})"
    )
    if not of_tokens:
        return
    yield (
        f"  padding   FastChat fills every row up to {inspection.width:,}: {inspection.num_padding:,} more "
        f"tokens, {percent(inspection.num_padding, inspection.num_rows * inspection.width)} of its work; "
        "here none"
    )


def _reasons(inspection: InspectedData, title: Paint) -> Iterator[str]:
    entries = sorted(inspection.report.entries.items(), key=lambda item: -item[1].count)
    if entries:
        yield title("remarks", _TITLE)
    for name, entry in entries:
        actions = ", ".join(f"{action} {count:,}" for action, count in entry.actions.items())
        first = ", ".join(one_line(name) for name in entry.first)
        share = percent(entry.count, inspection.report.num_records)
        yield f"  {name:<22} {entry.count:>9,} {share:>7}  {actions}; first: {first}"


def _histogram(name: str, counts: dict[int, int], title: Paint) -> Iterator[str]:
    if counts:
        yield title(f"{name}, median {median(counts):,}, most {max(counts):,}", _TITLE)
        yield HEAD
        yield from bars(counts)


def _headline(record: InspectedRecord) -> str:
    id_text = f" (id {one_line(record.id)})" if record.id else ""
    outcome = "kept" if record.outcome == "noted" else record.outcome
    where = f"{one_line(record.file)}: record {record.number}{id_text}, line {record.line}"
    learned, total = record.num_learned, len(record.tokens)
    if not total:
        return f"{where}: {outcome}"
    return (
        f"{where}: {outcome}, {total:,} tokens, {learned:,} learned ({percent(learned, total)}), "
        f"{turn_ends(record)} learned"
    )


def _remarks(record: InspectedRecord) -> Iterator[str]:
    for remark in record.remarks:
        where = f", message {remark.message}" if remark.message >= 0 else ""
        reason = f": {one_line(remark.reason)}" if remark.reason else ""
        yield f"{remark.action}: {remark.name}{where}{reason}"


def _marked(part: Part, colour: bool) -> str:
    marks = "" if colour else _BEGIN + _END + _CUT
    text = visible(part.text.decode("utf-8", "replace"), escape=marks)
    if part.kind == "context":
        return text
    if colour:
        # Each line is coloured by itself, because a coloured line break would colour the rest of the line.
        return "\n".join(f"{_STYLES[part.kind]}{line}{_RESET}" if line else "" for line in text.split("\n"))
    return f"{_CUT}{text}{_CUT}" if part.kind == "cut" else f"{_BEGIN}{text}{_END}"


def _token_lines(record: InspectedRecord, paint: Paint) -> Iterator[str]:
    yield paint(f"  {'token':>6} {'id':>7}  label    {'bytes':>13}  piece", _TITLE)
    for token in record.tokens:
        label = "end" if token.is_turn_end else "learned" if token.is_learned else ""
        place = f"{token.begin}-{token.end}" if token.end > token.begin else ""
        shown = one_line(token.piece)
        own = one_line(record.bytes_of(token).decode("utf-8", "backslashreplace"))
        line = f"  {token.position:>6} {token.id:>7}  {label:<7}  {place:>13}  {shown}"
        if own and own != token.piece:
            line += f"  {own!r}" if "\\" not in own else f"  '{own}'"
        yield paint(line, _STYLES[label]) if label else line


def _legend(colour: bool) -> str:
    if not colour:
        return f"{_BEGIN}learned{_END} {_CUT}beyond the limit{_CUT}"
    styles = (("learned", "learned"), ("end", "end of a turn, learned"), ("cut", "beyond the limit"))
    return " ".join(f"{_STYLES[kind]} {text} {_RESET}" for kind, text in styles)


def _painter(colour: bool) -> Paint:
    def paint(text: str, style: str) -> str:
        return f"{style}{text}{_RESET}" if colour else text

    return paint


_WIDTH = 40
HEAD = f"{'of a row':>13} {'':<{_WIDTH}} {'rows':>9} {'share':>7}"  # header for the columns of `bars`
_EIGHTHS = " ▏▎▍▌▋▊▉"


def bins(counts: Mapping[int, int], most: int = 12) -> list[Bar]:
    """Return at most `most` bins of equal, round width. counts: value (0 or more) -> row count."""
    if not counts:
        return []
    first, last = min(counts), max(counts)
    width = next(width for width in _round_widths() if last // width - first // width < most)
    totals = dict.fromkeys(range(first // width, last // width + 1), 0)
    for value, count in counts.items():
        totals[value // width] += count
    return [Bar(number * width, (number + 1) * width, count) for number, count in totals.items()]


def bars(counts: Mapping[int, int], width: int = _WIDTH) -> list[str]:
    """Return a line for each bin: its values, a bar of at most `width` characters, rows and share of rows.

    counts: value -> row count.
    """
    ranges = bins(counts)
    total, highest = sum(bar.count for bar in ranges), max((bar.count for bar in ranges), default=0)
    lines = []
    for bar in ranges:
        label = str(bar.begin) if bar.end == bar.begin + 1 else f"{bar.begin}-{bar.end - 1}"
        share = 100 * bar.count / total
        lines.append(f"{label:>13} {_bar(bar.count, highest, width):<{width}} {bar.count:>9,} {share:5.1f} %")
    return lines


def median(counts: Mapping[int, int]) -> int:
    """Return the lower median of all values; 0 if there are none. counts: value -> row count."""
    left = (sum(counts.values()) + 1) // 2
    for value in sorted(counts):
        left -= counts[value]
        if left <= 0:
            return value
    return 0


def _bar(count: int, highest: int, width: int) -> str:
    # A bar has at least an eighth of a character, so that bins with few rows stay visible.
    eighths = max(round(8 * width * count / highest), 1) if count else 0
    return "█" * (eighths // 8) + (_EIGHTHS[eighths % 8] if eighths % 8 else "")


def _round_widths() -> Iterator[int]:
    power = 1
    while True:
        yield from (power, 2 * power, 5 * power)
        power *= 10
