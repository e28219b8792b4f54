"""Pieces of a rendered conversation: control text and contents, and the spans that are learned.

Imports nothing but the standard library: it is part of the rendering process.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

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
