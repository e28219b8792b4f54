"""Places in modules and classes that were looked at, to see later whether something else is there."""

from __future__ import annotations

from collections.abc import Mapping, Sized
from types import CodeType, FunctionType


class Places:
    """Their content when they were added; `changed` is asked at every step."""

    def __init__(self) -> None:
        self._held: list[tuple[Mapping[str, object], str, object, CodeType | None]] = []
        self._sizes: list[tuple[Sized, int]] = []

    def add(self, owner: object, name: str) -> None:
        """The name of a module or class."""
        names = vars(owner)
        value = names.get(name)
        self._held.append((names, name, value, _code(value)))

    def add_all(self, owner: object) -> None:
        """All names of a class, and how many there are."""
        for name in vars(owner):
            self.add(owner, name)
        self.add_size(vars(owner))

    def add_size(self, content: Sized) -> None:
        """The number of things in a collection."""
        self._sizes.append((content, len(content)))

    def changed(self) -> bool:
        """True if something else is in one of the places, or a function has other code."""
        return any(
            names.get(name) is not value or _code(value) is not code
            for names, name, value, code in self._held
        ) or any(len(content) != size for content, size in self._sizes)


def _code(value: object) -> CodeType | None:
    return value.__code__ if isinstance(value, FunctionType) else None
