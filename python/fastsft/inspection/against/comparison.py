"""Compares our labels of chosen records with another framework's."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

from fastsft import _C
from fastsft.inspection.against.differences import Cell, Classifier, Difference, Kind
from fastsft.inspection.against.frameworks import FRAMEWORKS, adapter_of
from fastsft.inspection.against.records import record_for_others
from fastsft.inspection.against.request import Answer, DataPart, Request, TheirRecord
from fastsft.inspection.against.rows import Row, TokenTexts, joined, our_row, their_row

if TYPE_CHECKING:
    from fastsft.inspection.inspect import InspectionSetup


@dataclass(frozen=True)
class ComparedRecord:
    """A record in both forms. ours, theirs: None if there is no row, for the reasons `our_reason` and
    `their_reason`. cells: both rows side by side; only with both rows."""

    file: str
    number: int
    line: int
    id: str
    ours: Row | None
    theirs: Row | None
    our_reason: str
    their_reason: str
    cells: list[Cell] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.id or str(self.number)

    @property
    def is_dropped_once(self) -> bool:
        """True if one of the two learns from the record, and the other leaves it out."""
        return any(
            row is None and other is not None and any(other.learned)
            for row, other in ((self.ours, self.theirs), (self.theirs, self.ours))
        )

    @property
    def is_same(self) -> bool:
        return not self.differences and not self.is_dropped_once


@dataclass(frozen=True)
class Comparison:
    """Our labels next to those of a framework. title: its name. labels: how ours were made."""

    data: str
    model: str
    title: str
    versions: dict[str, str]
    settings: dict[str, Any]
    labels: str
    records: list[ComparedRecord]
    num_matching: int
    texts: TokenTexts

    @property
    def num_same(self) -> int:
        return sum(record.is_same for record in self.records)

    @property
    def is_same(self) -> bool:
        """True if no record differs."""
        return self.num_same == len(self.records)

    def counts(self) -> dict[Kind, dict[str, int]]:
        """Return for each kind that occurs: records, tokens, and how many of them each side learns."""
        totals: dict[Kind, Counter[str]] = {}
        for record in self.records:
            found: dict[Kind, Counter[str]] = {}
            for difference in record.differences:
                size = difference.num_tokens
                counter = found.setdefault(difference.kind, Counter())
                counter["tokens"] += size
                counter["ours"] += size * bool(difference.is_ours_learned)
                counter["theirs"] += size * bool(difference.is_theirs_learned)
            if record.is_dropped_once:
                found[Kind.DROPPED] = _lost(record)
            for kind, counter in found.items():
                totals.setdefault(kind, Counter()).update({**counter, "records": 1})
        return {kind: dict(totals[kind]) for kind in Kind if kind in totals}


def _lost(record: ComparedRecord) -> Counter[str]:
    learned = {
        name: sum(row.learned) if row else 0
        for name, row in (("ours", record.ours), ("theirs", record.theirs))
    }
    return Counter({**learned, "tokens": sum(learned.values())})


@dataclass(frozen=True)
class Against:
    """The other side of a comparison: a framework with its settings, and the Python that has it.

    description_of: returns the framework's own description of a data file, with which it reads the records
    itself; None if it gets them in the form of record_for_others.
    """

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    python: str = sys.executable
    seconds: float = 600.0
    description_of: Callable[[str], Mapping[str, Any]] | None = None


def compare(setup: InspectionSetup, name: str, survey: _C.Survey, against: Against) -> Comparison:
    """Compare the chosen records of a whole-record survey. ValueError if the framework cannot run.

    name: of the data.
    """
    framework = FRAMEWORKS[against.name]
    sent = [record_for_others(surveyed.json) for surveyed in survey.chosen]
    request = Request(
        framework, adapter_of(against.name), setup.model, setup.width, against.settings, against.python,
        against.seconds,
    )  # fmt: skip
    answer = (
        _asked(request, sent)
        if against.description_of is None
        else _read_there(request, survey.chosen, name, against.description_of)
    )
    texts = TokenTexts(setup.native)
    records = [
        _compared(surveyed, record, answered, setup.width, texts)
        for surveyed, (record, _), answered in zip(survey.chosen, sent, answer.records, strict=True)
    ]
    return Comparison(
        data=name, model=setup.model, title=framework.title, versions=answer.versions,
        settings=answer.settings, labels=setup.described(), records=records,
        num_matching=survey.num_matching, texts=texts,
    )  # fmt: skip


def _asked(request: Request, sent: Sequence[tuple[dict[str, Any] | None, str]]) -> Answer:
    """Return the framework's answer for records that are sent to it, and why others are not."""
    answer = request.run([record for record, _ in sent if record is not None])
    answers = iter(answer.records)
    records = [next(answers) if record is not None else TheirRecord([], reason) for record, reason in sent]
    return replace(answer, records=records)


def _read_there(
    request: Request,
    chosen: Sequence[_C.SurveyedRecord],
    name: str,
    description_of: Callable[[str], Mapping[str, Any]],
) -> Answer:
    """Return the framework's answer for records that it reads itself, file by file."""
    answers = []
    for file, group in groupby(chosen, lambda surveyed: surveyed.file or name):
        numbers = [surveyed.number for surveyed in group]
        answers.append(request.run_file(DataPart(file, numbers, description_of(file))))
    if not answers:
        return request.run([])
    return replace(answers[0], records=[record for answer in answers for record in answer.records])


def compare_flags(
    setups: tuple[InspectionSetup, InspectionSetup],
    name: str,
    surveys: tuple[_C.Survey, _C.Survey],
    shown: Mapping[str, Any],
) -> Comparison:
    """Compare our labels with ours under other flags. shown: those flags."""
    texts = TokenTexts(setups[0].native)
    records = []
    for first, second in zip(*(survey.chosen for survey in surveys), strict=True):
        rows = [our_row(each) for each in second.rows if each.tokens]
        record, _ = record_for_others(first.json)
        records.append(_with(first, record, joined(rows), _reason(second.rows), texts))
    return Comparison(
        data=name, model=setups[0].model, title="fastsft with other flags", versions={},
        settings={**shown, "labels": setups[1].described()}, labels=setups[0].described(), records=records,
        num_matching=surveys[0].num_matching, texts=texts,
    )  # fmt: skip


def _compared(
    surveyed: _C.SurveyedRecord,
    record: dict[str, Any] | None,
    theirs: TheirRecord,
    width: int,
    texts: TokenTexts,
) -> ComparedRecord:
    rows = [their_row(ids, labels, width) for ids, labels in theirs.rows]
    return _with(surveyed, record, joined(rows), theirs.dropped, texts)


def _with(
    surveyed: _C.SurveyedRecord,
    record: dict[str, Any] | None,
    theirs: Row | None,
    reason: str,
    texts: TokenTexts,
) -> ComparedRecord:
    ours = joined(our_row(each) for each in surveyed.rows if each.tokens)
    cells: list[Cell] = []
    differences: list[Difference] = []
    if ours is not None and theirs is not None and record is not None:
        classifier = Classifier(ours, theirs, texts, record)
        cells, differences = classifier.cells, list(classifier.differences())
    return ComparedRecord(
        file=surveyed.file, number=surveyed.number, line=surveyed.line,
        id=surveyed.id.decode("utf-8", "replace"), ours=ours, theirs=theirs,
        our_reason=_reason(surveyed.rows), their_reason=reason, cells=cells, differences=differences,
    )  # fmt: skip


def _reason(rows: Sequence[_C.Explanation]) -> str:
    """Return the faults and findings of a record's rows, as text."""
    said = [str(fault) for row in rows for fault in row.faults]
    said += [f"{issue.remark}: {issue.reason}" for row in rows for issue in row.findings]
    return "; ".join(dict.fromkeys(said))
