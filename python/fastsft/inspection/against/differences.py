"""Names the kind of each difference between two rows, and says what it means."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from fastsft.inspection.against.alignment import equal_runs, settled
from fastsft.inspection.against.rows import Row, TokenTexts


class Kind(StrEnum):
    """The subjects of differences."""

    END_MARK = "end mark"
    THOUGHTS = "thoughts"
    TOOL_TEXT = "tool text"
    DEFAULT_SYSTEM = "default system text"
    WHITE_SPACE = "white space"
    DROPPED = "dropped record"
    PROMPT_LEARNED = "prompt learned"
    LEAD = "lead of a reply"
    REPLY = "reply not learned"
    TOKENS = "other tokens"
    TARGET = "other target"
    CUT = "cut"
    OTHER = "other"


@dataclass(frozen=True)
class Difference:
    """Adjacent tokens that differ in one way.

    ours, theirs: (begin, end) in each row; empty if the tokens are in the other row only. is_ours_learned,
    is_theirs_learned: None if the tokens are not in that row. target: the text that the framework's model
    learns to write instead; "" if it is the row's own.
    """

    kind: Kind
    ours: tuple[int, int]
    theirs: tuple[int, int]
    text: str
    is_ours_learned: bool | None
    is_theirs_learned: bool | None
    target: str = ""

    @property
    def num_tokens(self) -> int:
        return max(self.ours[1] - self.ours[0], self.theirs[1] - self.theirs[0])


@dataclass(frozen=True)
class Cell:
    """Adjacent tokens that are alike: of both rows, or of one. target: an other target of theirs, or None."""

    ours: tuple[int, int]
    theirs: tuple[int, int]
    is_ours_learned: bool | None
    is_theirs_learned: bool | None
    target: int | None = None

    @property
    def is_equal(self) -> bool:
        return (
            self.target is None
            and self.is_ours_learned is not None
            and self.is_ours_learned == self.is_theirs_learned
        )


def cells(ours: Row, theirs: Row, anchors: Sequence[tuple[int, int]] = ()) -> Iterator[Cell]:
    """Yield the cells of two rows, in order. anchors: places of the same text in both."""
    at, to = 0, 0
    labels = ours.learned, theirs.learned
    runs = settled(equal_runs(ours.ids, theirs.ids, anchors), ours.ids, theirs.ids, labels)
    for i, j, count in [*runs, (len(ours.ids), len(theirs.ids), 0)]:
        yield from _alone(ours, at, i, is_ours=True, other=to)
        yield from _alone(theirs, to, j, is_ours=False, other=i)
        begin = 0
        for k in range(1, count + 1):
            key = _key(ours, theirs, i + begin, j + begin)
            if k == count or _key(ours, theirs, i + k, j + k) != key:
                yield Cell((i + begin, i + k), (j + begin, j + k), *key)
                begin = k
        at, to = i + count, j + count


def _key(ours: Row, theirs: Row, i: int, j: int) -> tuple[bool, bool, int | None]:
    return ours.learned[i], theirs.learned[j], theirs.targets.get(j)


def _alone(row: Row, begin: int, end: int, *, is_ours: bool, other: int) -> Iterator[Cell]:
    while begin < end:
        stop, learned, target = begin, row.learned[begin], row.targets.get(begin)
        while stop < end and row.learned[stop] == learned and row.targets.get(stop) == target:
            stop += 1
        span, none = (begin, stop), (other, other)
        yield Cell(span, none, learned, None) if is_ours else Cell(none, span, None, learned, target)
        begin = stop


_THOUGHTS = re.compile(
    r"<think>.*?(?:</think>\s*|$)|\[THINK\].*?(?:\[/THINK\]|$)|<seed:think>.*?(?:</seed:think>|$)"
    r"|<\|START_THINKING\|>.*?(?:<\|END_THINKING\|>|$)|<\|channel\|>analysis<\|message\|>.*?(?:<\|end\|>|$)",
    re.S,
)
# What opens a turn: special tokens and the speaker's name, with white space and colons.
_OPENING = re.compile(r"<(?![^<>]*sys)[^<>\s]+>|\[/?INST\]|user|human", re.I)
_TAG = re.compile(r"</?think>|\[/?THINK\]|</?seed:think>|<\|channel\|>analysis")


def _is_opening(text: str) -> bool:
    rest = _OPENING.sub("", text)
    return rest != text and not any(character.isalnum() for character in rest)


class Place:
    """Places of a record's texts in a row: its thoughts, and the message of each character."""

    def __init__(self, row: Row, texts: TokenTexts, messages: Sequence[dict[str, Any]]) -> None:
        self.begins = [0]
        parts = [texts(token) for token in row.ids]
        for part in parts:
            self.begins.append(self.begins[-1] + len(part))
        self.text = "".join(parts)
        self._thoughts = [match.span() for match in _THOUGHTS.finditer(self.text)]
        self._anchors = list(_anchors(self.text, messages))

    def of(self, span: tuple[int, int]) -> str:
        return self.text[self.begins[span[0]] : self.begins[span[1]]]

    def is_in_thoughts(self, span: tuple[int, int]) -> bool:
        begin, end = self.begins[span[0]], self.begins[span[1]]
        return any(start < end and begin < stop for start, stop in self._thoughts)

    def tokens(self) -> dict[int, int]:
        """Return for each message whose whole text is found the token with which it begins."""
        return {number: bisect_right(self.begins, at) - 1 for at, number, whole in self._anchors if whole}

    def messages_in(self, span: tuple[int, int]) -> list[int]:
        """Return the numbers of the messages whose text begins in a span."""
        begin, end = self.begins[span[0]], self.begins[span[1]]
        return [number for place, number, _ in self._anchors if begin <= place < end]

    def message_at(self, span: tuple[int, int]) -> int:
        """Return the message number at a span's beginning; -1 in front of the first one."""
        begin = self.begins[span[0]]
        return max((number for place, number, _ in self._anchors if place <= begin), default=-1)


def _anchors(text: str, messages: Sequence[dict[str, Any]]) -> Iterator[tuple[int, int, bool]]:
    """Yield where each message begins, its number, and False if its first line alone is there."""
    at = 0
    for number, message in enumerate(messages):
        if message["role"] == "system":
            continue
        calls = message.get("tool_calls") or []
        name = next((call["function"]["name"] for call in calls if isinstance(call, dict)), "")
        content = message.get("content")
        wanted = (content.strip() if isinstance(content, str) else "") or name
        for part in dict.fromkeys((wanted, wanted.partition("\n")[0])):
            found = text.find(part, at) if part else -1
            if found >= 0:
                yield found, number, part == wanted
                at = found + (0 if calls else len(part))
                break


class Classifier:
    """Compares the two rows of a record. tools: True if the record has tools or calls."""

    def __init__(self, ours: Row, theirs: Row, texts: TokenTexts, record: dict[str, Any]) -> None:
        self._ours, self._theirs, self._texts = ours, theirs, texts
        self._messages = record["messages"]
        self._has_tools = bool(record.get("tools")) or any(m.get("tool_calls") for m in self._messages)
        self._has_system = self._messages[0]["role"] == "system"
        self._places = Place(ours, texts, self._messages), Place(theirs, texts, self._messages)
        first, second = (place.tokens() for place in self._places)
        anchors = [(first[number], second[number]) for number in first if number in second]
        self.cells = list(cells(ours, theirs, anchors))

    def differences(self) -> Iterator[Difference]:
        """Yield the differences, in order."""
        before: Cell | None = None
        for number, cell in enumerate(self.cells):
            if not cell.is_equal:
                after = self.cells[number + 1] if number + 1 < len(self.cells) else None
                kind = self._kind(cell, before, after)
                text = self._text(cell)
                learned = cell.is_ours_learned, cell.is_theirs_learned
                target = "" if cell.target is None else self._texts(cell.target)
                yield Difference(kind, cell.ours, cell.theirs, text, *learned, target)
            before = cell

    def _side(self, cell: Cell) -> tuple[Place, tuple[int, int]]:
        if cell.is_ours_learned is None:
            return self._places[1], cell.theirs
        return self._places[0], cell.ours

    def _text(self, cell: Cell) -> str:
        place, span = self._side(cell)
        return place.of(span)

    def _kind(self, cell: Cell, before: Cell | None, after: Cell | None) -> Kind:
        place, span = self._side(cell)
        text = place.of(span)
        if self._is_cut(cell):
            return Kind.CUT
        if cell.target is not None:
            return Kind.TARGET
        if place.is_in_thoughts(span) or _TAG.search(text):
            return Kind.THOUGHTS
        others = [self._text(each) for each in (before, after) if each and self._is_alone(cell, each)]
        if text in others:
            return Kind.TOKENS
        if text.strip() in [each.strip() for each in others]:
            return Kind.WHITE_SPACE
        is_both = cell.is_ours_learned is not None and cell.is_theirs_learned is not None
        return self._of_labels(cell, span, text) if is_both else self._of_text(cell, place, span, text)

    def _is_cut(self, cell: Cell) -> bool:
        """True if the tokens are beyond the end of the other row, which has reached the limit."""
        ours, theirs = self._ours, self._theirs
        if cell.is_theirs_learned is None and theirs.is_cut:
            return cell.theirs[0] == len(theirs.ids)
        return cell.is_ours_learned is None and ours.is_cut and cell.ours[0] == len(ours.ids)

    def _is_alone(self, cell: Cell, other: Cell) -> bool:
        """True if one of the cells is in our row alone and the other one in theirs."""
        is_ours = [each.is_theirs_learned is None for each in (cell, other)]
        is_theirs = [each.is_ours_learned is None for each in (cell, other)]
        return sorted(is_ours) == sorted(is_theirs) == [False, True]

    def _of_labels(self, cell: Cell, span: tuple[int, int], text: str) -> Kind:
        """Return the kind of tokens that are in both rows and are learned in one."""
        learned = self._ours.learned
        if cell.is_theirs_learned:
            follows_end = span[0] > 0 and learned[span[0] - 1]
            if follows_end:
                return Kind.END_MARK
            return Kind.REPLY if self._is_reply(span) else Kind.PROMPT_LEARNED
        ends = span[1] == len(learned) or not learned[span[1]]
        starts = span[0] == 0 or not learned[span[0] - 1]
        if ends and (starts or self._begins_reply(span)):
            return Kind.REPLY
        kind = Kind.LEAD if starts else Kind.OTHER
        return Kind.END_MARK if ends else self._tool_or(kind, self._places[0], span)

    def _begins_reply(self, span: tuple[int, int]) -> bool:
        """True if a reply's text, whatever thoughts are before it, begins in these tokens of our row."""
        numbers = self._places[0].messages_in(span)
        return any(self._messages[number]["role"] == "assistant" for number in numbers)

    def _is_reply(self, span: tuple[int, int]) -> bool:
        number = self._places[0].message_at((span[1] - 1, span[1]))
        return number >= 0 and self._messages[number]["role"] == "assistant" and span[1] - span[0] > 2

    def _of_text(self, cell: Cell, place: Place, span: tuple[int, int], text: str) -> Kind:
        """Return the kind of a text that is in one row only."""
        learned = cell.is_ours_learned if cell.is_theirs_learned is None else cell.is_theirs_learned
        row = self._ours if cell.is_theirs_learned is None else self._theirs
        if not text.strip():
            return Kind.END_MARK if learned and self._is_end(row, span) else Kind.WHITE_SPACE
        if place.message_at(span) < 0 and (self._has_tools or not _is_opening(text)):
            return Kind.TOOL_TEXT if self._has_tools else Kind.DEFAULT_SYSTEM
        if self._is_end(row, span) and span[1] - span[0] <= 2:
            return Kind.END_MARK
        return self._tool_or(Kind.OTHER, place, span)

    def _is_end(self, row: Row, span: tuple[int, int]) -> bool:
        """True if the tokens end a reply, or follow its end."""
        if span[1] < len(row.learned) and row.learned[span[1]]:
            return False
        return row.learned[span[0]] or (span[0] > 0 and row.learned[span[0] - 1])

    def _tool_or(self, kind: Kind, place: Place, span: tuple[int, int]) -> Kind:
        number = place.message_at(span)
        near = self._messages[max(number, 0) : number + 2]
        is_tool = any(m["role"] == "tool" or m.get("tool_calls") for m in near)
        return Kind.TOOL_TEXT if self._has_tools and is_tool else kind
