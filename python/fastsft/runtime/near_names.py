"""Finds the name that a user probably meant, for error messages."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable


def nearest(name: str, names: Iterable[str], cutoff: float = 0.7) -> str | None:
    """Return the most similar of `names`, upper and lower case aside; None if no name is similar.

    A suffix that both have, such as `.json`, does not make them similar.
    """
    by_lower = {other.lower(): other for other in names}
    near = difflib.get_close_matches(name.lower(), by_lower, 5, cutoff=cutoff)
    stem, suffix = os.path.splitext(name.lower())
    for other in near:
        other_stem, other_suffix = os.path.splitext(other)
        same = other_suffix == suffix != ""
        if not same or difflib.SequenceMatcher(None, stem, other_stem).ratio() >= cutoff:
            return by_lower[other]
    return None


def nearest_text(name: str, names: Iterable[str]) -> str:
    """Return an error message's end, which names the most similar of `names`; "" if none is similar."""
    near = nearest(name, names)
    return "" if near is None else f"; the nearest is {near}"


def nearest_path(path: str | os.PathLike[str], *, directories: bool = False) -> str | None:
    """Return the path of a similar name, in the folder where `path` would be; None if there is none.

    directories: True to look at directories only.
    """
    folder, name = os.path.split(os.fspath(path).rstrip("/"))
    try:
        with os.scandir(folder or ".") as entries:
            names = [entry.name for entry in entries if entry.is_dir() or not directories]
    except OSError:
        return None
    near = nearest(name, names)
    if near is None:  # the beginning of a single name
        longer = [other for other in names if len(name) > 2 and other.lower().startswith(name.lower())]
        near = longer[0] if len(longer) == 1 else None
    return None if near is None else os.path.join(folder, near)
