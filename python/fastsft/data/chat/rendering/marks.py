"""Pieces of a rendered conversation: control text and contents, and the spans that are learned.

Imports nothing but the standard library: it is part of the rendering process.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

Span = tuple[int, int]
_MARK = re.compile("\ue000[\\d-]+\ue001?")  # in the place of a content, perhaps cut off


class Piece(NamedTuple):
    """Of a text with marks: control text, or the place of a content."""

    text: str
    content: int  # its number, -1 for control text
    begin: int  # in the text with marks

    @property
    def end(self) -> int:
        return self.begin + len(self.text)


def common_length(one: str, other: str, known: int = 0) -> int:
    """Characters at the front that both texts have; `known` of them are known to be."""
    low, high = known, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def difference(one: str, other: str, what: str) -> str:
    at = common_length(one, other)
    line = one.rfind("\n", 0, at) + 1
    cut = (text[line : at + 60].split("\n")[0] for text in (one, other))
    shown = [_MARK.sub("(text)", text) for text in cut]
    return f"the chat template's {what}: {shown[0]!r} becomes {shown[1]!r}"


def variants(text: str) -> Iterator[str]:
    """The text as templates write it: with all white space around it, or less."""
    yield text
    for strip in (str.strip, str.rstrip, str.lstrip):
        yield strip(text)
    yield text.strip("\n")


def place_contents(
    pieces: list[Piece], written: Callable[[int], Iterable[str]], full: str
) -> list[str] | None:
    """The texts of the pieces with the contents put back, as they are in `full`; None when they do not.

    written: texts that may be in `full` for the content of a number.
    """
    texts, at = [], 0
    for number, piece in enumerate(pieces):
        if piece.content < 0:
            found = piece.text if full.startswith(piece.text, at) else None
        else:
            behind = pieces[number + 1].text
            found = next(
                (text for text in written(piece.content) if full.startswith(text + behind, at)), None
            )
        if found is None:
            return None
        texts.append(found)
        at += len(found)
    return texts if at == len(full) else None


def cut_pieces(pieces: list[Piece], texts: list[str], spans: list[Span]) -> Iterator[tuple[str, bool, bool]]:
    """[text, is_data, is_learned] of the pieces, whose texts follow each other, cut where spans do."""
    edges = sorted({edge for span in spans for edge in span})
    at = 0
    for piece, text in zip(pieces, texts, strict=True):
        end = at + len(text)
        cuts = [edge for edge in edges if at < edge < end] if edges else []
        for begin, stop in zip([at, *cuts], [*cuts, end], strict=True):
            if begin == stop:
                continue
            is_learned = any(first <= begin < last for first, last in spans)
            yield text[begin - at : stop - at], piece.content >= 0, is_learned
        at = end


def moved_spans(pieces: list[Piece], texts: list[str], spans: list[Span]) -> list[Span]:
    """Spans of the text with marks as those of the text with `texts` in place of its pieces.

    They begin and end in control text.
    """
    moved, at, number = [], 0, 0
    for edge in sorted({edge for span in spans for edge in span}):
        while edge >= pieces[number].end and number + 1 < len(pieces):
            at += len(texts[number])
            number += 1
        moved.append((edge, at + edge - pieces[number].begin))
    places = dict(moved)
    return [(places[begin], places[end]) for begin, end in spans]


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
