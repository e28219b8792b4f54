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


def settled(
    runs: Sequence[Run],
    first: Sequence[int],
    second: Sequence[int],
    labels: tuple[Sequence[bool], Sequence[bool]],
) -> list[Run]:
    """Return the runs with each text of a single row moved to the place with the fewest unequal labels.

    A text can be moved over tokens with which both it and its neighbour begin, or end. Of equally good places
    the nearest is taken.
    """

    def differ(i: int, j: int) -> bool:
        return labels[0][i] != labels[1][j]

    def moves(left: Run, right: Run, direction: int) -> Iterator[tuple[int, int]]:
        """Yield (change of the number of unequal labels, tokens) for each possible move."""
        begin, end = (left[0] + left[2], left[1] + left[2]), right[:2]
        change = 0
        for step in range(right[2] if direction > 0 else left[2]):
            at = step if direction > 0 else -1 - step
            near, far = (begin[0] + at, begin[1] + at), (end[0] + at, end[1] + at)
            joined, parted = (near, far) if direction > 0 else (far, near)
            if first[joined[0]] != second[joined[1]]:
                return
            change += differ(*joined) - differ(*parted)
            yield change, direction * (step + 1)

    moved = list(runs)
    for number in range(len(runs) - 1):
        left, right = moved[number], moved[number + 1]
        (i, j, size), (k, m, count) = left, right
        if (i + size == k) == (j + size == m):  # a text of both rows, or none
            continue
        possible = [(0, 0), *moves(left, right, 1), *moves(left, right, -1)]
        _, steps = min(possible, key=lambda move: (move[0], abs(move[1])))
        moved[number], moved[number + 1] = (i, j, size + steps), (k + steps, m + steps, count - steps)
    return [run for run in moved if run[2]]


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
