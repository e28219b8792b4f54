"""The results of an inspection: numbers of the data set, and its records token by token."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastsft import _C


@dataclass(frozen=True)
class InspectedToken:
    """A token in a row.

    begin, end: the token's text is bytes [begin, end) of the row's text; the range is empty for a BOS token
    at the front. piece: the token's text in the vocabulary. is_learned: True if the token is a target.
    is_turn_end: True if the token is a stop token after a reply, and a target.
    """

    position: int
    id: int
    piece: str
    begin: int
    end: int
    is_learned: bool
    is_turn_end: bool


@dataclass(frozen=True)
class Part:
    """A part of a row's text with tokens of one kind.

    kind: "context", "learned", "end" (a stop token that is a target) or "cut" (beyond the row length limit).
    """

    text: bytes
    kind: str


@dataclass(frozen=True)
class Remark:
    """Reason why a record or a message was dropped, fixed or noted.

    message: the message's number; -1 if the reason is about the record.
    """

    name: str
    action: str
    message: int
    reason: str


@dataclass(frozen=True)
class InspectedRecord:
    """A record of the data.

    line, byte: the record's position in `file`. outcome: noted (kept unchanged), truncated, salvaged,
    unlabelled, dropped, excluded (has no row) or stopped (training would stop here). text: the model's input
    in UTF-8, including the part that is cut; empty if there is no row. num_cut: number of tokens that are cut
    because the row is too long. messages: (role, text) as in the data.
    """

    file: str
    number: int
    id: str
    line: int
    byte: int
    outcome: str
    remarks: list[Remark]
    text: bytes
    tokens: list[InspectedToken]
    num_cut: int
    messages: list[tuple[str, str]]

    @classmethod
    def of(cls, surveyed: _C.SurveyedRecord, native: _C.Tokenizer, stop_id: int) -> InspectedRecord:
        """Convert a record from the native core. stop_id: id of the stop token."""
        seen = surveyed.explanation
        return cls(
            file=surveyed.file,
            number=surveyed.number,
            id=_text(surveyed.id),
            line=surveyed.line,
            byte=surveyed.byte,
            outcome=seen.outcome,
            remarks=[*map(_fault, seen.faults), *map(_finding, seen.findings)],
            text=seen.text_bytes if seen.tokens else b"",
            tokens=list(_tokens(seen.tokens, native, stop_id)),
            num_cut=seen.num_cut,
            messages=[(_text(role), _text(value)) for role, value in surveyed.messages],
        )

    @property
    def name(self) -> str:
        """The record's id, or its number if there is no id."""
        return self.id or str(self.number)

    @property
    def num_learned(self) -> int:
        return sum(token.is_learned for token in self.tokens)

    @property
    def num_turn_ends(self) -> int:
        return sum(token.is_turn_end for token in self.tokens)

    def bytes_of(self, token: InspectedToken) -> bytes:
        """Return the token's bytes in the text."""
        return self.text[token.begin : token.end]

    def parts(self) -> Iterator[Part]:
        """Yield the whole text, divided into parts whose tokens have the same kind."""
        for kind, group in groupby(self.tokens, _kind):
            members = list(group)
            yield Part(b"".join(map(self.bytes_of, members)), kind)
        end = max((token.end for token in self.tokens), default=0)
        if self.num_cut and end < len(self.text):
            yield Part(self.text[end:], "cut")


def _kind(token: InspectedToken) -> str:
    return "end" if token.is_turn_end else "learned" if token.is_learned else "context"


def _tokens(
    rows: list[tuple[int, int, int, bool]], native: _C.Tokenizer, stop_id: int
) -> Iterator[InspectedToken]:
    for position, (token, begin, end, learned) in enumerate(rows):
        is_end = learned and token == stop_id
        yield InspectedToken(position, token, native.token_text(token), begin, end, learned, is_end)


def _fault(fault: _C.RecordError) -> Remark:
    return Remark(fault.remark, "stopped", -1, str(fault))


def _finding(finding: _C.RecordIssue) -> Remark:
    return Remark(finding.remark, finding.action, finding.message, finding.reason)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


@dataclass(frozen=True, repr=False)
class InspectedData:
    """Base class of `fastsft.inspection.inspect.Inspection`, which documents the fields."""

    data: str
    model: str
    width: int
    labelling: dict[str, Any]
    report: _C.DataReport
    faults: list[_C.RecordError]
    num_faults: int
    lengths: dict[int, int]
    learned: dict[int, int]
    num_matching: int
    records: list[InspectedRecord]
    unit: str = "tokens"

    def __repr__(self) -> str:
        """Return a line with the main numbers."""
        report = self.report
        is_divided = report.num_whole < report.num_records
        of = f"rows of {report.num_whole:,} records" if is_divided else "records"
        return (
            f"<{type(self).__name__} of {self.data}: {report.num_records:,} {of}, {report.num_kept:,} "
            f"kept, {report.num_learned:,} of {report.num_tokens:,} {self.unit} learned, {self.num_faults:,} "
            "faults>"
        )

    @property
    def is_learnable(self) -> bool:
        """True if training would start: there are targets, and no record stops the run."""
        return self.report.num_learned > 0 and self.num_faults == 0

    @property
    def num_rows(self) -> int:
        return sum(self.lengths.values())

    @property
    def num_padding(self) -> int:
        """How many padding tokens FastChat needs to fill rows up to the limit."""
        return self.num_rows * self.width - int(self.report.num_tokens)

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The data set's entry in data_report.json, with `faults`, model_max_length and padding_tokens added.

        Without a model, `unit` ("bytes") replaces model_max_length and padding_tokens.
        """
        limit = {"model_max_length": self.width, "padding_tokens": self.num_padding}
        return {
            **self.labelling,
            **json.loads(self.report.to_json()),
            "faults": self.num_faults,
            **(limit if self.unit == "tokens" else {"unit": self.unit}),
        }
