"""Histograms of token counts: bins with round edges, and their bars in text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_WIDTH = 40
HEAD = f"{'of a row':>13} {'':<{_WIDTH}} {'rows':>9} {'share':>7}"  # above the columns of `bars`
_EIGHTHS = " ▏▎▍▌▋▊▉"


@dataclass(frozen=True)
class Bin:
    """Values [begin, end) and how many rows have one of them."""

    begin: int
    end: int
    count: int


def bins(counts: Mapping[int, int], most: int = 12) -> list[Bin]:
    """At most `most` bins of equal, round width over all values; `counts`: value (0 or more) -> rows."""
    if not counts:
        return []
    first, last = min(counts), max(counts)
    width = next(width for width in _round_widths() if last // width - first // width < most)
    totals = dict.fromkeys(range(first // width, last // width + 1), 0)
    for value, count in counts.items():
        totals[value // width] += count
    return [Bin(number * width, (number + 1) * width, count) for number, count in totals.items()]


def bars(counts: Mapping[int, int], width: int = _WIDTH) -> list[str]:
    """One line a bin: its values, a bar of at most `width` characters, its rows and their share."""
    found = bins(counts)
    total, highest = sum(each.count for each in found), max((each.count for each in found), default=0)
    lines = []
    for each in found:
        label = str(each.begin) if each.end == each.begin + 1 else f"{each.begin}-{each.end - 1}"
        share = 100 * each.count / total
        lines.append(
            f"{label:>13} {_bar(each.count, highest, width):<{width}} {each.count:>9,} {share:5.1f} %"
        )
    return lines


def median(counts: Mapping[int, int]) -> int:
    """The lower median of all values; 0 of none."""
    left = (sum(counts.values()) + 1) // 2
    for value in sorted(counts):
        left -= counts[value]
        if left <= 0:
            return value
    return 0


def _bar(count: int, highest: int, width: int) -> str:
    # What is there is seen: at least an eighth of a character.
    eighths = max(round(8 * width * count / highest), 1) if count else 0
    return "█" * (eighths // 8) + (_EIGHTHS[eighths % 8] if eighths % 8 else "")


def _round_widths() -> Iterator[int]:
    power = 1
    while True:
        yield from (power, 2 * power, 5 * power)
        power *= 10
