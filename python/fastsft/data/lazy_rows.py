"""Detect changes that a script makes to records, tokenizer or items of a lazy data set after labelling."""

from __future__ import annotations

import functools
import hashlib
import marshal
import pickle
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, SupportsInt

import numpy as np
import numpy.typing as npt

from fastsft.data.labelled_rows import LabelledRows, Tensors
from fastsft.tokenizer.state import digest_model, tokenizer_state

_DIGEST_BYTES = 16


class LazyDataset(Protocol):
    """A data set whose items depend on these attributes. A script may replace each attribute."""

    @property
    def tokenizer(self) -> object: ...
    @property
    def raw_data(self) -> Sequence[Any]: ...
    @property
    def cached_data_dict(self) -> Mapping[int, Tensors]: ...


class LazyRows:
    """Labelled rows, with the records and the tokenizer that gave the labels.

    read_raw_data: reads the records of a data file; None if the records are in memory.
    """

    def __init__(
        self, rows: LabelledRows, tokenizer: object, read_raw_data: Callable[[], Sequence[Any]] | None = None
    ) -> None:
        digest_model(tokenizer)
        self.rows, self._labelled_by = rows, (tokenizer, tokenizer_state(tokenizer))
        self._read = read_raw_data
        self._raw_data: Sequence[Any] | None = None
        self._digests: npt.NDArray[np.uint64] | None = None

    @classmethod
    def from_records(cls, rows: LabelledRows, tokenizer: object, raw_data: Sequence[Any]) -> LazyRows:
        """Return the object for `rows`, which have just been labelled from `raw_data`."""
        made = cls(rows, tokenizer)
        made._remember(raw_data)
        return made

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the tokenizer: a copy has another tokenizer object, whose settings may differ."""
        return {**self.__dict__, "_labelled_by": (None, ())}

    def read_raw_data(self) -> Sequence[Any]:
        """Read the file's records, and keep digests of their contents."""
        assert self._read is not None
        raw_data = self._read()
        self._remember(raw_data)
        return raw_data

    def has_tokenizer(self, tokenizer: object) -> bool:
        """True if `tokenizer` is the object that labelled the rows, with unchanged settings."""
        return tokenizer_state(tokenizer) == self._labelled_by[1]

    @property
    def can_change_unseen(self) -> bool:
        """True if the records are objects whose content cannot be compared."""
        return self._raw_data is not None and self._digests is None

    def is_of(self, dataset: LazyDataset, rows: Collection[int] | None = None) -> bool:
        """True if `dataset` still has the tokenizer and the records from which the rows were labelled.

        Records with cached items are not compared. rows: the numbers of the records to compare; None: compare
        all records, and also the tokenizer's whole model.
        """
        if rows is None:
            digest_model(dataset.tokenizer)
        if not self.has_tokenizer(dataset.tokenizer):
            return False
        if "raw_data" not in dataset.__dict__:
            return self._read is not None
        records = dataset.raw_data
        if self._digests is None or len(records) != len(self.rows.native):
            return False
        if rows is not None and records is not self._raw_data:
            return False
        cached = dataset.cached_data_dict
        looked_at = [row for row in (range(len(records)) if rows is None else rows) if row not in cached]
        digests = _digests([records[row] for row in looked_at] if type(records) in (list, tuple) else records)
        if digests is None or not np.array_equal(digests, self._digests[looked_at]):
            return False
        self._raw_data = records
        return True

    def are_rows(self, cache: object, rows: Collection[int] | None = None) -> bool:
        """True if each item in `cache` equals the row with its number.

        rows: the numbers to compare; None for all items.
        """
        if not isinstance(cache, Mapping):
            return False
        made = cache.made() if isinstance(cache, RowCache) else cache
        if rows is not None:
            made = {row: made[row] for row in rows if row in made}
        noted = not isinstance(cache, RowCache) or rows is not None or cache.noted_are(self.rows)
        return noted and self.rows.are_rows(made)

    def _remember(self, raw_data: Sequence[Any]) -> None:
        self._raw_data, self._digests = raw_data, _digests(raw_data)


def _digests(records: Sequence[Any]) -> npt.NDArray[np.uint64] | None:
    """Return a digest of 16 bytes for each record; None if the records cannot be compared.

    Only records in a plain list or tuple, all of which can be serialised, can be compared.
    """
    if type(records) not in (list, tuple):
        return None
    digests = []
    for record in records:
        content = _content(record)
        if content is None:
            return None
        digests.append(hashlib.blake2b(content, digest_size=_DIGEST_BYTES).digest())
    return np.frombuffer(b"".join(digests), dtype=np.uint64).reshape(-1, _DIGEST_BYTES // 8)


def _content(record: Any) -> bytes | None:
    """Return the record as bytes that depend only on its value; None if it cannot be serialised."""
    try:
        return marshal.dumps(record, 0)
    except ValueError:  # raised if the record has objects that marshal cannot write
        pass
    try:
        return pickle.dumps(record, protocol=5)
    except (pickle.PicklingError, TypeError, AttributeError, RecursionError):
        return None


class RowCache(dict[int, Tensors]):
    """Items by row number, like FastChat's `cached_data_dict`: an item that was read is not made again.

    Rows that the engine has read natively (`note`) also count as items. Such an item is made at its first
    access.
    """

    def __init__(self) -> None:
        super().__init__()
        self._rows: LabelledRows | None = None
        self._noted: npt.NDArray[np.bool_] = np.zeros(0, dtype=bool)
        self._order: list[int] = []

    def note(self, rows: LabelledRows, numbers: Iterable[SupportsInt]) -> None:
        """Record that the engine has read the rows with these numbers. Existing items are kept."""
        if rows is not self._rows:
            self.fill()
            self._rows, self._noted = rows, np.zeros(len(rows.native), dtype=bool)
        new = [row for row in map(int, numbers) if not self._noted[row]]
        self._noted[new] = True
        self._order += dict.fromkeys(new)

    def noted(self) -> npt.NDArray[np.int64]:
        """Return the numbers of the rows that the engine has read and that have no item yet."""
        noted = self._noted.copy()
        noted[[row for row in dict.keys(self) if self._is_noted(row)]] = False
        return np.flatnonzero(noted)

    def made(self) -> dict[int, Tensors]:
        """Return the existing items, without making items for noted rows."""
        return dict(dict.items(self))

    def move(self, rows: LabelledRows) -> None:
        """Use `rows`, whose content is equal, to make items for noted rows from now on."""
        if self._rows is not None:
            self._rows = rows

    def noted_are(self, rows: LabelledRows) -> bool:
        """True if `rows` has equal rows for all noted rows."""
        return self._rows is None or self._rows is rows or rows.are_alike(self._rows, self.noted())

    def fill(self) -> None:
        """Make an item for every noted row."""
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
        """Remove all items and notes."""
        self._rows, self._noted, self._order = None, np.zeros(0, dtype=bool), []
        dict.clear(self)


def _with_all(name: str) -> Callable[..., object]:
    """Return a method that calls `fill` and then dict's method `name`."""
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
