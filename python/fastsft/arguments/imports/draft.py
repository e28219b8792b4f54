"""Collects a new configuration file's values, and what became of each key of the other file."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple


class Fate(StrEnum):
    """What became of a key; the values are the report's headings."""

    CARRIED = "carried"
    CHANGED = "carried with a change"
    IDLE = "not carried, the result is the same"
    LOST = "NOT CARRIED, the result differs"
    DEFAULT = "their defaults, written out"


class Row(NamedTuple):
    """A key with its value, and what was written for it or why nothing was."""

    key: str
    value: object
    fate: Fate
    text: str


OFF: tuple[object, ...] = (None, False, "", 0, 0.0, [], {}, "none", "null", "no", "false", "False")


class Draft:
    """The new file's values and the report, while the keys of another trainer's file are read.

    given: the file's keys and values. left: keys that have no row yet. place: directory of the file.
    """

    def __init__(self, given: Mapping[str, object], place: Path) -> None:
        self.given = dict(given)
        self.left = dict(given)
        self.place = place
        self.values: dict[str, object] = {}
        self.rows: list[Row] = []

    def get(self, key: str, default: object = None) -> object:
        """Return a key's value; `default` if the key is missing or has no value."""
        value = self.given.get(key)
        return default if value is None else value

    def is_on(self, key: str) -> bool:
        """True if the file has the key with a value other than an empty or false one."""
        return key in self.given and not is_off(self.given[key])

    def carry(self, key: str, values: Mapping[str, object], change: str = "") -> None:
        """Write `values` for a key. change: what differs or why the form is another; "" if nothing does."""
        self.values.update(values)
        written = ", ".join(f"{name}: {plain(value)}" for name, value in values.items())
        text = f"{written}; {change}" if change else written
        self._add(key, Fate.CHANGED if change else Fate.CARRIED, text)

    def idle(self, key: str, reason: str) -> None:
        """Leave out a key that does not change the result."""
        self._add(key, Fate.IDLE, reason)

    def switch(
        self, key: str, values: Mapping[str, object], change: str = "", off: str = "it is off"
    ) -> None:
        """Write `values` if a key is on; leave it out if it is off."""
        if key not in self.left:
            return
        if self.is_on(key):
            self.carry(key, values, change)
        else:
            self.idle(key, off)

    def expect(self, key: str, usual: tuple[object, ...], reason: str) -> None:
        """Leave out a key that has one of the `usual` values, which fastsft has without a flag."""
        if key not in self.left:
            return
        if self.given[key] is None or self.given[key] in usual:
            self.idle(key, reason)
        else:
            self.lose(key, reason)

    def lose(self, key: str, reason: str, values: Mapping[str, object] | None = None) -> None:
        """Leave out a key that changes the result. values: the nearest that fastsft has, which is written."""
        self.values.update(values or {})
        written = ", ".join(f"{name}: {plain(value)}" for name, value in (values or {}).items())
        self._add(key, Fate.LOST, f"{written} is written; {reason}" if written else reason)

    def default(self, name: str, value: object, reason: str = "") -> None:
        """Write a default of the other trainer, unless the file itself gave the value."""
        if name not in self.values:
            self.values[name] = value
            text = f"{name}: {plain(value)}"
            self.rows.append(Row("", None, Fate.DEFAULT, f"{text}; {reason}" if reason else text))

    def differ(self, reason: str) -> None:
        """Note that a default of the other trainer, which cannot be written, changes the result."""
        self.rows.append(Row("", None, Fate.LOST, reason))

    def _add(self, key: str, fate: Fate, text: str) -> None:
        self.left.pop(key, None)
        self.rows.append(Row(key, self.given.get(key), fate, text))

    def found(self, path: str) -> str | None:
        """Return the path of an existing file or directory, or None.

        A relative path is looked for in the working directory, then in the directory of the file and its
        parents, because trainers are started from the root of their repository.
        """
        place = Path(path).expanduser()
        above = [] if place.is_absolute() else [self.place, *list(self.place.absolute().parents)[:3]]
        try:
            return next(
                (str(base / place) for base in (Path(), *above) if path and (base / place).exists()), None
            )
        except (OSError, ValueError):  # no name of a file: too long, or with a null byte
            return None


def is_off(value: object) -> bool:
    """True for None, false values, and words such as `none`."""
    return any(type(value) is type(item) and value == item for item in OFF)


def number(key: str, value: object) -> float:
    """Return the number that a key has. ValueError, with the key, for other values."""
    try:
        return float(str(value))
    except ValueError:
        raise ValueError(f"{key}: expected a number, got {value!r:.60}; correct it there") from None


def whole(key: str, value: object) -> int:
    """Return the whole number that a key has. ValueError, with the key, for other values."""
    try:
        return int(str(value))
    except ValueError:
        raise ValueError(f"{key}: expected a whole number, got {value!r:.60}; correct it there") from None


def plain(value: object) -> str:
    """Return a value as the report prints it."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "none"}[value]
    if isinstance(value, list):
        return f"[{', '.join(map(plain, value))}]"
    return str(value)


def words(value: object) -> list[str]:
    """Return a list's items, or those that a text separates by commas or spaces."""
    if isinstance(value, list | tuple):
        return [str(item) for item in value]
    return str(value).replace(",", " ").split() if value is not None else []
