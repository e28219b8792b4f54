"""A record's rows as sequences of tokens with texts, ours and theirs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from fastsft import _C

_LETTER = "a"


@dataclass(frozen=True)
class Row:
    """Tokens of a row. learned: True for each target. num_rows: the rows that were joined into this one.

    targets: the targets that are other tokens than the row's own, by place.
    """

    ids: list[int] = field(default_factory=list)
    learned: list[bool] = field(default_factory=list)
    num_rows: int = 1
    is_cut: bool = False  # the row reached the limit of tokens
    targets: dict[int, int] = field(default_factory=dict)


class TokenTexts:
    """Texts of token ids. Ids beyond the vocabulary, which a framework has added, are shown as numbers."""

    def __init__(self, native: _C.Tokenizer) -> None:
        self._native = native
        self._lead = native.encode(_LETTER)
        self._before = native.decode(self._lead)
        self._known: dict[int, str] = {}

    def __call__(self, token: int) -> str:
        if token not in self._known:
            self._known[token] = self.of([token])
        return self._known[token]

    def of(self, ids: Sequence[int]) -> str:
        """Return the text of adjacent tokens."""
        try:
            text = self._native.decode([*self._lead, *ids])
        except (ValueError, IndexError, RuntimeError):
            return " ".join(f"<id {token}>" for token in ids)
        return text[text.index(self._before) + len(self._before) :]


def our_row(explanation: _C.Explanation) -> Row:
    """Return the row of an explained record."""
    tokens = explanation.tokens
    is_cut = explanation.num_cut > 0
    return Row([token[0] for token in tokens], [token[3] for token in tokens], is_cut=is_cut)


def their_row(ids: Sequence[int], labels: Sequence[int], limit: int) -> Row:
    """Return the row of a framework, whose labels are -100 for tokens that are not learned."""
    learned = [label != -100 for label in labels]
    pairs = enumerate(zip(ids, labels, strict=True))
    targets = {place: label for place, (token, label) in pairs if label not in (-100, token)}
    return Row(list(ids), learned, is_cut=len(ids) >= limit, targets=targets)


def joined(rows: Iterable[Row]) -> Row | None:
    """Join a record's rows, of which each has one reply more; None if there is none.

    Each reply stays as it is learned, also if the rows after it have it in another form.
    """
    whole: Row | None = None
    for row in rows:
        whole = row if whole is None else _continued(whole, row)
    return whole


def _continued(whole: Row, row: Row) -> Row:
    """Return `whole` and the part of `row` after `whole`'s last reply."""
    end = max((i for i, is_learned in enumerate(whole.learned) if is_learned), default=-1) + 1
    reply = next((i for i, is_learned in enumerate(row.learned) if is_learned), len(row.ids))
    begin = _place_after(whole.ids[:end], row.ids[:reply])
    ids = [*whole.ids[:end], *row.ids[begin:]]
    learned = [*whole.learned[:end], *row.learned[begin:]]
    targets = {place: label for place, label in whole.targets.items() if place < end}
    targets |= {place - begin + end: label for place, label in row.targets.items() if place >= begin}
    return Row(ids, learned, whole.num_rows + 1, row.is_cut, targets)


def _place_after(before: Sequence[int], context: Sequence[int]) -> int:
    """Return the place in a context after the text with which `before` ends.

    Of several places, the one with the most tokens in common, or else the last. The token that ends the reply
    may be another in the context.
    """
    size, place = _longest_end(before, context)
    if size == 0 and before:
        size, place = _longest_end(before[:-1], context)
        place += size > 0
    return min(place, len(context))


def _longest_end(before: Sequence[int], context: Sequence[int]) -> tuple[int, int]:
    """Return the most tokens that `before` and the beginning of the context up to a place end with."""
    best = (0, len(context))
    for place in range(1, len(context) + 1):
        size = 0
        while size < min(place, len(before)) and context[place - size - 1] == before[-size - 1]:
            size += 1
        if size and size >= best[0]:
            best = (size, place)
    return best
