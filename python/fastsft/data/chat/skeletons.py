"""Skeletons: texts that a chat template writes around marks, in the place of values of a chat.

A skeleton keeps what the template has done with its marks, but for writing them (`watched.py`). Part of the
process that renders (`render.py`): imports nothing but the standard library.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from fastsft.data.chat.asked_chat import Chat
from fastsft.data.chat.pieces import Piece
from fastsft.data.chat.reply_spans import Reply, Written

MARK_BEGIN, _MARK_END = "\ue000", "\ue001"
_SHORT = 9  # characters of a mark; some templates take only ids of so many


class Marks:
    """Texts that no record has, by number.

    nonce: 18 digits, because a template may change the case of what it writes.
    """

    def __init__(self, nonce: str) -> None:
        self._long = f"{MARK_BEGIN}{nonce}-%05d{_MARK_END}"
        self._short = f"{MARK_BEGIN}{nonce[:2]}%05d{_MARK_END}"
        self._pattern = re.compile(f"{MARK_BEGIN}(?:{nonce}-|{nonce[:2]})(\\d{{5}}){_MARK_END}")

    def of(self, number: int, size: int = 0) -> str:
        """The mark of a number; size: of a text whose length may count."""
        return (self._short if size == _SHORT else self._long) % number

    def replaced(self, text: str, made: Callable[[int], str]) -> str:
        """The text with something made of the number of each mark in its place."""
        return self._pattern.sub(lambda mark: made(int(mark.group(1))), text)

    def is_one(self, text: str) -> bool:
        """True for a text that is a mark and no more."""
        return self._pattern.fullmatch(text) is not None

    def cut(self, text: str) -> list[Piece]:
        """The text in pieces: first control text, then a mark and control text in turn."""
        pieces, at = [], 0
        for mark in self._pattern.finditer(text):
            pieces.append(Piece(text[at : mark.start()], -1, at))
            pieces.append(Piece(mark.group(), int(mark.group(1)), mark.start()))
            at = mark.end()
        pieces.append(Piece(text[at:], -1, at))
        return pieces


class Guard(NamedTuple):
    """A call that the template has made with marks, and its result; texts in them are cut at their marks."""

    call: Callable[..., Any]
    args: Any
    kwargs: dict[str, Any]
    result: Any

    def holds(self, values: list[Any]) -> bool:
        """True if the call has the same result with values in the place of the marks."""
        try:
            expected = _filled(self.result, values)
            kwargs = {name: _filled(each, values) for name, each in self.kwargs.items()}
            result = self.call(*_filled(self.args, values), **kwargs)
        except Exception:  # the template may raise anything of a text
            return False
        return type(result) is type(expected) and bool(result == expected)


class Trace:
    """The calls that a template makes with the marks of one chat, but for writing them.

    count: values of the chat, whose marks have the first numbers; what is made of them has the next.
    """

    def __init__(self, marks: Marks, count: int = 0) -> None:
        self.marks, self._count = marks, count
        self._guards: dict[tuple[Any, ...], Guard] = {}
        self._made: dict[tuple[Any, ...], int] = {}

    @property
    def size(self) -> int:
        """About as many characters as it takes."""
        return sum(256 + len(key[1]) for key in self._guards) + 256 * len(self._made)

    def keep(self, call: Callable[..., Any], args: tuple[Any, ...], kwargs: Any, result: Any) -> None:
        key = (getattr(call, "func", call), repr((args, kwargs)))
        if key not in self._guards:
            cut = {name: self._cut(each) for name, each in kwargs.items()}
            self._guards[key] = Guard(call, self._cut(args), cut, self._cut(result))

    def made(self, text: str, make: Callable[..., str], *args: Any, **options: Any) -> str:
        """The text with marks of their own for what is made of the values of its marks."""
        more = tuple(options.items())
        return self.marks.replaced(text, lambda number: self._mark((number, make, args, more)))

    def values(self, given: list[Any]) -> list[Any]:
        """The values of a chat by number."""
        found = [*given]
        for number, make, args, options in self._made:
            found.append(make(found[number], *args, **dict(options)))
        return found

    def holds(self, values: list[Any]) -> bool:
        return all(guard.holds(values) for guard in self._guards.values())

    def _mark(self, key: tuple[Any, ...]) -> str:
        return self.marks.of(self._count + self._made.setdefault(key, len(self._made)))

    def _cut(self, value: Any) -> Any:
        if type(value) is str and MARK_BEGIN in value:
            pieces = self.marks.cut(value)
            return _Cut(piece.text if piece.content < 0 else piece.content for piece in pieces if piece.text)
        return type(value)(map(self._cut, value)) if type(value) in (list, tuple) else value


class _Cut(tuple[Any, ...]):
    """A text in parts: control text, and numbers of marks."""

    __slots__ = ()


class Skeleton(NamedTuple):
    """The text of a chat of marks.

    found: the replies that were asked for; None of one whose place other chats cannot share. parts: the other
    texts that were rendered to find them, by the number of messages and with a prompt for a reply or without.
    """

    chat: Chat
    written: Written
    pieces: list[Piece]
    trace: Trace
    found: dict[int, Reply | None]
    parts: dict[tuple[int, bool], list[Piece]]

    @property
    def size(self) -> int:
        """About as many characters as it takes."""
        texts = [self.pieces, *self.parts.values()]
        parts = sum(map(len, texts)) + len(self.found) + len(self.chat.messages)
        return 2 * sum(pieces[-1].end for pieces in texts) + 256 * parts + self.trace.size

    def is_between_marks(self, place: int) -> bool:
        """True for a place in the text that is in no mark."""
        return not any(piece.content >= 0 and piece.begin < place < piece.end for piece in self.pieces)


def filled(pieces: list[Piece], values: list[Any]) -> list[str] | None:
    """The texts of the pieces with values in the place of marks; None without a text for each."""
    try:
        texts = [piece.text if piece.content < 0 else values[piece.content] for piece in pieces]
    except IndexError:  # data that looks like a mark
        return None
    # An object that is not written as JSON is no text.
    return texts if set(map(type, texts)) == {str} else None


def _filled(value: Any, values: list[Any]) -> Any:
    kind = type(value)
    if kind is _Cut:
        if len(value) == 1 and type(value[0]) is int:
            return values[value[0]]
        return "".join(part if type(part) is str else values[part] for part in value)
    return kind(_filled(each, values) for each in value) if kind in (list, tuple) else value
