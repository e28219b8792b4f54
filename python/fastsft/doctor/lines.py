"""Results as lines of a terminal."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable

from fastsft.doctor.result import FAILED, OK, UNCHECKED, WARNING, Result
from fastsft.runtime.terminal import visible

_COLOURS = {OK: "32", WARNING: "33", FAILED: "1;31", UNCHECKED: "2"}
_MARK_WIDTH, _NAME_WIDTH = 13, 15
_MOST_LINES = 6


def result_text(result: Result, width: int, colour: bool) -> str:
    """One line, which goes on below itself where the page is narrow; the way out begins with an arrow."""
    said = visible(result.found).expandtabs().splitlines()
    if len(said) > _MOST_LINES:
        said = [*said[:_MOST_LINES], f"({len(said) - _MOST_LINES} more lines)"]
    said += [f"-> {visible(result.way_out)}"] if result.way_out and result.mark != OK else []
    indent = _MARK_WIDTH + _NAME_WIDTH
    lines = [part for line in said for part in _wrapped(line, max(width - indent, 20))]
    mark = f"{result.mark:<{_MARK_WIDTH}}"
    head = f"\x1b[{_COLOURS[result.mark]}m{mark}\x1b[0m" if colour else mark
    return "\n".join(
        f"{' ' * indent if number else f'{head}{result.name:<{_NAME_WIDTH}}'}{line}".rstrip()
        for number, line in enumerate(lines or [""])
    )


def _wrapped(line: str, room: int) -> list[str]:
    return textwrap.wrap(line, room, break_long_words=False, break_on_hyphens=False) or [""]


def count_text(results: Iterable[Result]) -> str:
    """`11 ok, 1 warning, 1 failed`."""
    counts = Counter(result.mark for result in results)
    plural = "s" if counts[WARNING] != 1 else ""
    parts = [f"{counts[OK]} ok", f"{counts[WARNING]} warning{plural}", f"{counts[FAILED]} failed"]
    return ", ".join([*parts, *([f"{counts[UNCHECKED]} not checked"] if counts[UNCHECKED] else [])])
