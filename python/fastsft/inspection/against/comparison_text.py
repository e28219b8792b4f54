"""Shows a comparison as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from fastsft.inspection.against.comparison import ComparedRecord, Comparison
from fastsft.inspection.against.differences import Cell, Difference
from fastsft.inspection.against.reasons import label_words, why
from fastsft.inspection.against.rows import TokenTexts
from fastsft.runtime.terminal import folded, one_line, visible

_RESET, _TITLE, _DIM, _ALARM = "\x1b[0m", "\x1b[1m", "\x1b[2m", "\x1b[1;31m"
# Learned by both, by us alone, by them alone; and texts that are in one row only.
_STYLES = {"both": "\x1b[30;42m", "ours": "\x1b[30;46m", "theirs": "\x1b[30;41m"}
_MARKS = {"both": ("\u27e6", "\u27e7"), "ours": ("\u27ea", "\u27eb"), "theirs": ("\u2983", "\u2984")}
_ONE_SIDED = {"ours": ("\u2039-", "-\u203a"), "theirs": ("\u2039+", "+\u203a")}
_MOST_LINES = 20
_MOST_TEXT = 60


def comparison_text(
    comparison: Comparison, *, colour: bool = False, tokens: bool = False, width: int | None = None
) -> str:
    """Return the records with their differences, and the counts.

    colour: True to mark by colours instead of brackets. tokens: True to print each token on its own line.
    """
    writer = _Writer(comparison, colour, width)
    return "\n".join([*writer.records(tokens), *writer.summary()])


class _Writer:
    def __init__(self, comparison: Comparison, colour: bool, width: int | None) -> None:
        self._all, self._colour, self._width = comparison, colour, width
        self._texts: TokenTexts = comparison.texts

    def records(self, tokens: bool) -> Iterator[str]:
        for record in self._all.records:
            style = _TITLE if record.is_same else _ALARM
            yield self._paint(folded(self._headline(record), self._width, indent=2), style)
            if record.ours is None:
                yield folded(f"  left out by fastsft: {one_line(record.our_reason)}", self._width, indent=4)
            if record.theirs is None:
                reason = one_line(record.their_reason)
                yield folded(f"  left out by {self._all.title}: {reason}", self._width, indent=4)
            if record.cells:
                yield from self._tokens(record) if tokens else [self._marked(record)]
            yield from self._differences(record)
            yield ""

    def _headline(self, record: ComparedRecord) -> str:
        id_text = f" (id {one_line(record.id)})" if record.id else ""
        where = f"{one_line(record.file)}: record {record.number}{id_text}, line {record.line}"
        sides = [
            f"{title} {sum(row.learned):,} of {len(row.ids):,} tokens learned"
            + (f" in {row.num_rows} rows" if row.num_rows > 1 else "")
            for title, row in (("fastsft", record.ours), (self._all.title, record.theirs))
            if row is not None
        ]
        count = len(record.differences)
        said = (
            "the same"
            if record.is_same
            else f"{count} difference{'' if count == 1 else 's'}"
            if count
            else "left out by one"
        )
        return f"{where}: {said}; {', '.join(sides) or 'left out by both'}"

    def _marked(self, record: ComparedRecord) -> str:
        return "".join(self._cell(record, cell) for cell in record.cells)

    def _cell(self, record: ComparedRecord, cell: Cell) -> str:
        ids = _ids(record, cell)
        marks = "" if self._colour else "".join(sum(_MARKS.values(), ()))
        text = visible(self._texts.of(ids), escape=marks)
        sides = [
            side
            for side, is_learned in (("ours", cell.is_ours_learned), ("theirs", cell.is_theirs_learned))
            if is_learned
        ]
        kind = "both" if len(sides) == 2 else sides[0] if sides else ""
        alone = "ours" if cell.is_theirs_learned is None else "theirs" if cell.is_ours_learned is None else ""
        if alone:
            text = text.join(_ONE_SIDED[alone])
        if not kind:
            return text
        if self._colour:
            return "\n".join(f"{_STYLES[kind]}{line}{_RESET}" if line else "" for line in text.split("\n"))
        return text.join(_MARKS[kind])

    def _tokens(self, record: ComparedRecord) -> Iterator[str]:
        yield self._paint(
            f"  {'fastsft':>8} {'theirs':>8} {'id':>8}  {'fastsft':<12} {'theirs':<12}  text", _TITLE
        )
        for cell in record.cells:
            is_both = None not in (cell.is_ours_learned, cell.is_theirs_learned)
            for number, token in enumerate(_ids(record, cell)):
                at = cell.ours[0] + number if cell.is_ours_learned is not None else ""
                to = cell.theirs[0] + number if cell.is_theirs_learned is not None else ""
                labels = f"{label_words(cell.is_ours_learned):<12} {label_words(cell.is_theirs_learned):<12}"
                line = f"  {at:>8} {to:>8} {token:>8}  {labels}  {self._texts(token)!r}"
                yield line if cell.is_equal and is_both else self._paint(visible(line), _ALARM)

    def _differences(self, record: ComparedRecord) -> Iterator[str]:
        for difference in record.differences[:_MOST_LINES]:
            yield folded(self._line(difference), self._width, indent=6)
        rest = len(record.differences) - _MOST_LINES
        if rest > 0:
            yield f"    and {rest:,} more; --tokens and --html have all"

    def _line(self, difference: Difference) -> str:
        text = difference.text if len(difference.text) <= _MOST_TEXT else f"{difference.text[:_MOST_TEXT]}..."
        at = difference.ours[0] if difference.is_ours_learned is not None else difference.theirs[0]
        ours, theirs = (
            label_words(each) for each in (difference.is_ours_learned, difference.is_theirs_learned)
        )
        labels = f"fastsft {ours}, {self._all.title} {theirs}"
        reason = why(difference)
        return f"  - {difference.kind}, token {at}: {text!r}: {labels}" + (f": {reason}" if reason else "")

    def summary(self) -> Iterator[str]:
        comparison = self._all
        versions = ", ".join(f"{name} {number}" for name, number in comparison.versions.items())
        settings = ", ".join(f"{name}={value}" for name, value in comparison.settings.items())
        yield self._paint(f"fastsft against {comparison.title}", _TITLE)
        yield folded(f"  data      {one_line(comparison.data)}", self._width, indent=12)
        yield folded(f"  fastsft   {comparison.labels}", self._width, indent=12)
        if versions:
            yield folded(f"  theirs    {versions}", self._width, indent=12)
        yield folded(f"  settings  {one_line(settings) or 'none'}", self._width, indent=12)
        shown, same = len(comparison.records), comparison.num_same
        compared = f"{shown:,} of {comparison.num_matching:,} compared"
        yield f"  records   {compared}: {same:,} the same, {shown - same:,} different"
        counts = comparison.counts()
        if counts:
            head = f"  {'kind':<22} {'records':>8} {'tokens':>8} {'learned here':>13} {'learned there':>14}"
            yield self._paint(head, _TITLE)
        for kind, count in counts.items():
            yield (
                f"  {kind:<22} {count['records']:>8,} {count['tokens']:>8,} {count.get('ours', 0):>13,} "
                f"{count.get('theirs', 0):>14,}"
            )
        yield self._legend()

    def _legend(self) -> str:
        names = {
            "both": "learned by both",
            "ours": "by fastsft alone",
            "theirs": f"by {self._all.title} alone",
        }
        if self._colour:
            learned = [f"{_STYLES[kind]} {name} {_RESET}" for kind, name in names.items()]
        else:
            learned = [name.join(_MARKS[kind]) for kind, name in names.items()]
        alone = [
            f"text of {name} alone".join(_ONE_SIDED[side])
            for side, name in (("ours", "fastsft"), ("theirs", self._all.title))
        ]
        return " ".join([*learned, *alone])

    def _paint(self, text: str, style: str) -> str:
        return f"{style}{text}{_RESET}" if self._colour else text


def _ids(record: ComparedRecord, cell: Cell) -> list[int]:
    assert record.ours is not None and record.theirs is not None
    if cell.is_ours_learned is None:
        return record.theirs.ids[slice(*cell.theirs)]
    return record.ours.ids[slice(*cell.ours)]
