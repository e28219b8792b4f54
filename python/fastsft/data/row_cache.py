"""The items that a lazy data set has handed out, or would have handed out to a loader."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, SupportsInt

import numpy as np
import numpy.typing as npt

from fastsft.data.labelled_rows import LabelledRows, Tensors


class RowCache(dict[int, Tensors]):
    """Items by number, as FastChat's `cached_data_dict` keeps them: one that was read stays as it is.

    Rows that the engine took as they were labelled (`note`) are items too, made when somebody asks for them.
    """

    def __init__(self) -> None:
        super().__init__()
        self._rows: LabelledRows | None = None
        self._noted: npt.NDArray[np.bool_] = np.zeros(0, dtype=bool)
        self._order: list[int] = []

    def note(self, rows: LabelledRows, numbers: Iterable[SupportsInt]) -> None:
        """The rows `numbers` of `rows` were read; those that are items already stay."""
        if rows is not self._rows:
            self.fill()
            self._rows, self._noted = rows, np.zeros(len(rows.native), dtype=bool)
        new = [row for row in map(int, numbers) if not self._noted[row]]
        self._noted[new] = True
        self._order += dict.fromkeys(new)

    def noted(self) -> npt.NDArray[np.int64]:
        """Numbers of the rows that were read, and are no items yet."""
        noted = self._noted.copy()
        noted[[row for row in dict.keys(self) if self._is_noted(row)]] = False
        return np.flatnonzero(noted)

    def made(self) -> dict[int, Tensors]:
        """The items that there are; `noted` ones apart."""
        return dict(dict.items(self))

    def move(self, rows: LabelledRows) -> None:
        """Noted rows are those of `rows` from here on, which has the same."""
        if self._rows is not None:
            self._rows = rows

    def noted_are(self, rows: LabelledRows) -> bool:
        """True if the noted rows are the same in `rows`."""
        return self._rows is None or self._rows is rows or rows.are_alike(self._rows, self.noted())

    def fill(self) -> None:
        """Make an item of every noted row."""
        for row in self._order:
            if not dict.__contains__(self, row):
                dict.__setitem__(self, row, self._row(row))
        self._noted[:], self._order = False, []

    def _row(self, number: int) -> Tensors:
        assert self._rows is not None
        return self._rows.row(number)

    def _is_noted(self, number: object) -> bool:
        if not isinstance(number, int | np.integer) or not 0 <= number < len(self._noted):
            return False
        return bool(self._noted[int(number)])

    def __contains__(self, number: object) -> bool:
        return dict.__contains__(self, number) or self._is_noted(number)

    def __missing__(self, number: int) -> Tensors:
        if not self._is_noted(number):
            raise KeyError(number)
        self[number] = self._row(number)
        return dict.__getitem__(self, number)

    def __reduce__(self) -> tuple[Any, ...]:
        self.fill()
        return dict, (self.made(),)

    def __iter__(self) -> Iterator[int]:
        self.fill()
        return dict.__iter__(self)

    def clear(self) -> None:
        """No item is left, and none is noted."""
        self._rows, self._noted, self._order = None, np.zeros(0, dtype=bool), []
        dict.clear(self)


def _with_all(name: str) -> Callable[..., object]:
    """The method of dict, which sees noted rows too."""
    method = getattr(dict, name)

    @functools.wraps(method)
    def call(self: RowCache, *args: object, **given: object) -> object:
        self.fill()
        return method(self, *args, **given)

    return call


for _name in (
    "__len__", "__delitem__", "__eq__", "__ne__", "__or__", "__ror__", "__repr__", "__reversed__", "copy",
    "get", "items", "keys", "pop", "popitem", "setdefault", "values",
):  # fmt: skip
    setattr(RowCache, _name, _with_all(_name))
