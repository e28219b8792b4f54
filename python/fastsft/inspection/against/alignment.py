"""Pairs equal tokens of two rows."""

from __future__ import annotations

import difflib
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

Run = tuple[int, int, int]  # begin in the first row, begin in the second row, number of equal tokens
_SMALL = 1 << 18  # product of lengths for which difflib is quick
_GRAMS = (8, 3, 1)  # lengths of unique sequences that serve as anchors


def equal_runs(
    first: Sequence[int], second: Sequence[int], anchors: Sequence[tuple[int, int]] = ()
) -> list[Run]:
    """Return the equal runs of two rows, in order and as long as possible.

    anchors: rising places of the same text in both rows; equal tokens are sought between two of them.
    """
    runs: list[Run] = []
    for (begin, start), (end, stop) in pairwise([(0, 0), *anchors, (len(first), len(second))]):
        runs += _found(first, begin, end, second, start, stop)
    return _joined(runs)


def _found(
    first: Sequence[int], begin: int, end: int, second: Sequence[int], start: int, stop: int
) -> Iterator[Run]:
    """Yield the equal runs of first[begin:end] and second[start:stop]."""
    front = 0
    while begin + front < end and start + front < stop and first[begin + front] == second[start + front]:
        front += 1
    yield begin, start, front
    begin, start = begin + front, start + front
    back = 0
    while back < min(end - begin, stop - start) and first[end - back - 1] == second[stop - back - 1]:
        back += 1
    end, stop = end - back, stop - back
    if begin < end and start < stop:
        yield from _inner(first, begin, end, second, start, stop)
    yield end, stop, back


def _inner(
    first: Sequence[int], begin: int, end: int, second: Sequence[int], start: int, stop: int
) -> Iterator[Run]:
    if (end - begin) * (stop - start) <= _SMALL:
        matcher = difflib.SequenceMatcher(None, first[begin:end], second[start:stop], autojunk=False)
        yield from ((begin + i, start + j, n) for i, j, n in matcher.get_matching_blocks())
        return
    anchors = _anchors(first[begin:end], second[start:stop])
    last_i, last_j = begin, start
    for i, j in ((begin + i, start + j) for i, j in anchors):
        yield from _found(first, last_i, i, second, last_j, j)
        last_i, last_j = i, j
    if anchors:
        yield from _found(first, last_i, end, second, last_j, stop)


def _anchors(first: Sequence[int], second: Sequence[int]) -> list[tuple[int, int]]:
    """Return places of equal sequences that occur once in each row, in rising order."""
    for length in _GRAMS:
        ours, theirs = _unique(first, length), _unique(second, length)
        pairs = [(i, theirs[gram]) for gram, i in ours.items() if gram in theirs]
        if pairs:
            return _rising(pairs)
    return []


def _unique(row: Sequence[int], length: int) -> dict[tuple[int, ...], int]:
    grams = [tuple(row[i : i + length]) for i in range(len(row) - length + 1)]
    counts = Counter(grams)
    return {gram: i for i, gram in enumerate(grams) if counts[gram] == 1}


def _rising(pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the longest part of the pairs, sorted by their first place, whose second places rise."""
    tails: list[int] = []
    before: list[int] = []
    ends: list[int] = []
    for index, (_, j) in enumerate(pairs):
        at = bisect_left(tails, j)
        before.append(ends[at - 1] if at else -1)
        tails[at : at + 1], ends[at : at + 1] = [j], [index]
    chosen = []
    index = ends[-1] if ends else -1
    while index >= 0:
        chosen.append(pairs[index])
        index = before[index]
    return chosen[::-1]


def _joined(runs: Iterable[Run]) -> list[Run]:
    joined: list[Run] = []
    for i, j, count in runs:
        if not count:
            continue
        if joined and joined[-1][0] + joined[-1][2] == i and joined[-1][1] + joined[-1][2] == j:
            joined[-1] = (*joined[-1][:2], joined[-1][2] + count)
        else:
            joined.append((i, j, count))
    return joined
