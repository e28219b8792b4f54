"""Finds the name that a user probably meant, for error messages."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Iterator


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
            names = [entry.name for entry in entries if not directories or os.path.isdir(entry)]
    except OSError:
        return None
    near = nearest(name, names)
    if near is None:  # the beginning of a single name
        longer = [other for other in names if len(name) > 2 and other.lower().startswith(name.lower())]
        near = longer[0] if len(longer) == 1 else None
    return None if near is None else os.path.join(folder, near)


_NAMES_IN_HINT = 5


def missing_hint(path: str | os.PathLike[str], *, directories: bool = False) -> str:
    """Return the end of an error message about a path where nothing is: the name that was probably meant.

    directories: True if a directory is expected.
    """
    name = os.path.expanduser(os.fspath(path))
    if variable := re.search(r"\$\{?\w+\}?", name):
        return f"; {variable[0]} is not replaced here: use double quotes in a shell, and its value in a file"
    if name.startswith("~"):
        return f"; no user {name[1:].split('/')[0]} has a home directory here"
    if re.match(r"[A-Za-z]:[\\/]", name):
        linux = f"/mnt/{name[0].lower()}/{name[3:]}".replace("\\", "/")
        return f"; a path of Windows: on Linux write it with /, in WSL as {linux}"
    if near := nearest_path(name, directories=directories):
        return f"; the nearest there is {near}"
    folder = os.path.dirname(name.rstrip("/")) or "."
    if not os.path.isdir(folder):
        there = next(parent for parent in _parents(folder) if os.path.isdir(parent))
        return f"; the nearest folder there is {os.path.abspath(there)}"
    return f"; {os.path.abspath(folder)} has {_listed(folder, directories)}"


def _parents(folder: str) -> Iterator[str]:
    """Yield the folders above `folder`, the innermost first; the last is the working directory or /."""
    while folder not in ("", "/", "."):
        folder = os.path.dirname(folder)
        yield folder or "."


def _listed(folder: str, directories: bool) -> str:
    """Return the first names in a folder, as text."""
    try:
        names = sorted(name for name in os.listdir(folder) if not name.startswith("."))
    except OSError as error:
        return f"names that cannot be read: {error.strerror}"
    kept = [name for name in names if os.path.isdir(os.path.join(folder, name)) or not directories]
    if not kept:
        return "no directories" if directories else "no files"
    return f"{', '.join(kept[:_NAMES_IN_HINT])}{', ...' * (len(kept) > _NAMES_IN_HINT)}"
