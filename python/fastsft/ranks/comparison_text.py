"""Messages about differences between ranks: the first fact that differs, with ranks and values."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

_SHOWN = 120  # most characters of a value that a message shows
_NAMED = 5  # most further differences that a message names
_NOTHING = ""  # stands for a fact that a rank does not report; no JSON text is empty


def difference(reports: Mapping[int, Mapping[str, str]]) -> str:
    """Return a message about facts that differ between ranks.

    reports: maps each rank to its facts, which map names to JSON texts.
    """
    names = list(dict.fromkeys(name for report in reports.values() for name in report))
    values = {name: {rank: report.get(name, _NOTHING) for rank, report in reports.items()} for name in names}
    different = [name for name in names if len(set(values[name].values())) > 1]
    if not different:
        return "ranks name what they compare in different orders; start all of them with one command"
    first, *others = different
    more = "" if not others else f"; different, too: {', '.join(others[:_NAMED])}"
    more += f" and {len(others) - _NAMED} more" if len(others) > _NAMED else ""
    return f"{first}: {_held(values[first])}; all ranks need the same{more}"


def _held(values: Mapping[int, str]) -> str:
    """Return, for example, `ranks 0 to 2 have 1e-05, rank 3 has 2e-05`."""
    by_value: dict[str, list[int]] = {}
    for rank, value in values.items():
        by_value.setdefault(value, []).append(rank)
    return ", ".join(
        f"{named_ranks(ranks)} {'has' if len(ranks) == 1 else 'have'} {_shown(value)}"
        for value, ranks in by_value.items()
    )


def named_ranks(ranks: Sequence[int]) -> str:
    """Return, for example, `rank 3` or `ranks 0, 2 to 5`. ranks: in ascending order."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    texts = [str(a) if a == b else f"{a}, {b}" if b == a + 1 else f"{a} to {b}" for a, b in runs]
    return f"rank{'' if len(ranks) == 1 else 's'} {', '.join(texts)}"


def _shown(text: str) -> str:
    """Return a JSON text as messages show it: strings without quotes, `none` for null, long texts cut."""
    if text == _NOTHING:
        return "nothing"
    value = json.loads(text)
    plain = text
    if value is None:
        plain = "none"
    elif isinstance(value, bool | float) or (isinstance(value, str) and value):
        plain = str(value)
    return plain if len(plain) <= _SHOWN else f"{plain[:_SHOWN]}..."
