"""Names of chat templates as people write them: the name that is meant, or the nearest ones."""

from __future__ import annotations

import re

from fastsft import _C
from fastsft.arguments.parsing.near_flags import slips

MODEL = "model"
_MOST_SLIPS = 2


def template_name(name: str) -> str:
    """The canonical name of a template of fastsft's own. ValueError, with the nearest name, for others."""
    try:
        return _C.canonical_template_name(name)
    except ValueError as error:
        said, _, known = str(error).partition("; known: ")
        near = nearest_name(name, known.split(", "))
        nearest = "" if near is None else f"the nearest is {near}; "
        raise ValueError(
            f"--template: {said}; {nearest}--template {MODEL} is the model's own template; known: {MODEL}, "
            f"{known}"
        ) from None


def nearest_name(name: str, known: list[str]) -> str | None:
    """The known name that is meant: the same letters and digits, the same family, or a few slips away."""
    wanted = _plain(name)
    by_plain = {_plain(each): each for each in reversed(known)}
    if wanted in by_plain:
        return by_plain[wanted]
    starts = [each for each in by_plain if each and (wanted.startswith(each) or each.startswith(wanted))]
    if starts and wanted:
        return by_plain[
            max(starts, key=lambda each: (len(each) if wanted.startswith(each) else 0, -len(each)))
        ]
    family = re.match(r"[a-z]*", wanted)
    stem = family[0] if family else ""
    near = min((slips(stem, _stem(each), _MOST_SLIPS), index) for index, each in enumerate(known))
    return known[near[1]] if len(stem) > 3 and near[0] <= _MOST_SLIPS else None


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _stem(name: str) -> str:
    return re.split(r"[^a-z]", name.lower(), maxsplit=1)[0]
