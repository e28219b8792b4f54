"""Replace a conversation's values by marks, and cut a rendered text at the marks.

A `Trace` records all operations of a template on marks, except that it writes them (`watched.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

Span = tuple[int, int]
_MARK = re.compile("\ue000[\\d-]+\ue001?")  # matches a mark, also if its end is cut off


class Piece(NamedTuple):
    """A part of a text with marks: either a mark or the template's own text between two marks."""

    text: str
    content: int  # the mark's number; -1 for the template's own text
    begin: int  # position in the text with marks

    @property
    def end(self) -> int:
        return self.begin + len(self.text)


def common_length(one: str, other: str, known: int = 0) -> int:
    """Return the length of the longest common prefix of two texts. known: a lower bound of the result."""
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
    """Yield the text with and without its surrounding white space, as templates may write it."""
    yield text
    for strip in (str.strip, str.rstrip, str.lstrip):
        yield strip(text)
    yield text.strip("\n")


def place_contents(
    pieces: list[Piece], written: Callable[[int], Iterable[str]], full: str
) -> list[str] | None:
    """Match a chat's text `full` with pieces of a text with marks, and return each piece's text in `full`.

    written: returns, for a mark number, the possible texts of the replaced content. None if `full` does not
    match.
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
    """Yield (text, is_data, is_learned) for the pieces, cut at the edges of the learned spans."""
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
    """Convert a marked text's spans to spans of the chat's text.

    pieces: the text with marks. texts: the chat's text for each piece. Spans must begin and end outside of
    marks.
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
_SHORT = 9  # length of a short mark; some templates accept only ids with nine characters


class Marks:
    """The marks of a process: numbered texts that no record contains.

    nonce: 18 random digits. There are no letters in a mark, because a template may change their case.
    """

    def __init__(self, nonce: str) -> None:
        self._long = f"{MARK_BEGIN}{nonce}-%05d{_MARK_END}"
        self._short = f"{MARK_BEGIN}{nonce[:2]}%05d{_MARK_END}"
        self._pattern = re.compile(f"{MARK_BEGIN}(?:{nonce}-|{nonce[:2]})(\\d{{5}}){_MARK_END}")

    def of(self, number: int, size: int = 0) -> str:
        """Return the mark with a number. size: the length of the replaced text, if the length matters."""
        return (self._short if size == _SHORT else self._long) % number

    def replaced(self, text: str, made: Callable[[int], str]) -> str:
        """Replace each mark in `text` by the result of `made` for its number."""
        return self._pattern.sub(lambda mark: made(int(mark.group(1))), text)

    def is_one(self, text: str) -> bool:
        """True if `text` is a single mark without further text."""
        return self._pattern.fullmatch(text) is not None

    def cut(self, text: str) -> list[Piece]:
        """Cut `text` into pieces, alternately the template's own text (perhaps empty) and a mark.

        The first and the last piece are the template's own text.
        """
        pieces, at = [], 0
        for mark in self._pattern.finditer(text):
            pieces.append(Piece(text[at : mark.start()], -1, at))
            pieces.append(Piece(mark.group(), int(mark.group(1)), mark.start()))
            at = mark.end()
        pieces.append(Piece(text[at:], -1, at))
        return pieces


class Guard(NamedTuple):
    """A call that the template has made with marks, and its result. `_Cut` stands for texts with marks."""

    call: Callable[..., Any]
    args: Any
    kwargs: dict[str, Any]
    result: Any

    def holds(self, values: list[Any]) -> bool:
        """True if the call with `values` in place of the marks gives the recorded result, filled likewise."""
        try:
            expected = _filled(self.result, values)
            kwargs = {name: _filled(value, values) for name, value in self.kwargs.items()}
            result = self.call(*_filled(self.args, values), **kwargs)
        except Exception:  # a call that succeeds with marks may raise any error with other texts
            return False
        return type(result) is type(expected) and bool(result == expected)


class Trace:
    """A record of the calls that a template makes with a chat's marks.

    count: the number of values in the chat, whose marks have the numbers below `count`. Marks of values that
    the template derives from them have the numbers from `count` on.
    """

    def __init__(self, marks: Marks, count: int = 0) -> None:
        self.marks, self._count = marks, count
        self._guards: dict[tuple[Any, ...], Guard] = {}
        self._made: dict[tuple[Any, ...], int] = {}

    @property
    def size(self) -> int:
        """The approximate memory use in characters."""
        return sum(256 + len(key[1]) for key in self._guards) + 256 * len(self._made)

    def keep(self, call: Callable[..., Any], args: tuple[Any, ...], kwargs: Any, result: Any) -> None:
        key = (getattr(call, "func", call), repr((args, kwargs)))
        if key not in self._guards:
            cut = {name: self._cut(value) for name, value in kwargs.items()}
            self._guards[key] = Guard(call, self._cut(args), cut, self._cut(result))

    def made(self, text: str, make: Callable[..., str], *args: Any, **options: Any) -> str:
        """Replace each mark in a text by a new mark that stands for `make` of the old mark's value."""
        more = tuple(options.items())
        return self.marks.replaced(text, lambda number: self._mark((number, make, args, more)))

    def values(self, given: list[Any]) -> list[Any]:
        """Return a chat's values, followed by the derived values, so that the index is the mark number."""
        values = [*given]
        for number, make, args, options in self._made:
            values.append(make(values[number], *args, **dict(options)))
        return values

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
    """A text with marks, as a tuple of texts and mark numbers."""

    __slots__ = ()


def filled(pieces: list[Piece], values: list[Any]) -> list[str] | None:
    """Return the pieces' texts, with values in place of marks; None if a value is missing or not a text."""
    try:
        texts = [piece.text if piece.content < 0 else values[piece.content] for piece in pieces]
    except IndexError:  # raised if the data contains a text that looks like a mark
        return None
    # A value that is not a text is an object that the template did not write as JSON.
    return texts if set(map(type, texts)) == {str} else None


def _filled(value: Any, values: list[Any]) -> Any:
    kind = type(value)
    if kind is _Cut:
        if len(value) == 1 and type(value[0]) is int:
            return values[value[0]]
        return "".join(part if type(part) is str else values[part] for part in value)
    return kind(_filled(each, values) for each in value) if kind in (list, tuple) else value
