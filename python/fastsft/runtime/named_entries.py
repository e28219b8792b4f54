"""A pickle of strangers: a dictionary of entries of one kind by name, or a line that says what else it is."""

from __future__ import annotations

from pathlib import Path


def check_named(path: Path, content: object, kind: type, what: str) -> None:
    """ValueError, naming the file, unless `content` has texts for keys and values of `kind`.

    what: the kind for messages ("a tensor").
    """
    plural = what.split(maxsplit=1)[1] + "s"
    if not isinstance(content, dict):
        raise ValueError(f"{path}: expected a dictionary of {plural}, got {type(content).__name__}")
    for name, entry in content.items():
        if not isinstance(name, str):
            raise ValueError(f"{path}: expected names of {plural}, got {type(name).__name__}")
        if not isinstance(entry, kind):
            raise ValueError(f"{path}: {name!r}: expected {what}, got {type(entry).__name__}")
