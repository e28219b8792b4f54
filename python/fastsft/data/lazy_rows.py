"""The labelled rows of a data set whose records, tokenizer and items anybody may change."""

from __future__ import annotations

import hashlib
import marshal
import pickle
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from fastsft.data.labelled_rows import LabelledRows, Tensors
from fastsft.data.row_cache import RowCache
from fastsft.tokenizer.model_digest import look_at_model
from fastsft.tokenizer.tokenizer_state import tokenizer_state

_DIGEST_BYTES = 16


class LazyDataset(Protocol):
    """A data set whose rows are made of these; a script may put something else into each."""

    @property
    def tokenizer(self) -> object: ...
    @property
    def raw_data(self) -> Sequence[Any]: ...
    @property
    def cached_data_dict(self) -> Mapping[int, Tensors]: ...


class LazyRows:
    """`rows`, and what they were labelled from: records and `tokenizer` as they were then.

    read_raw_data: gives the records, where they came from a file and nobody has asked for them.
    """

    def __init__(
        self, rows: LabelledRows, tokenizer: object, read_raw_data: Callable[[], Sequence[Any]] | None = None
    ) -> None:
        look_at_model(tokenizer)
        self.rows, self._labelled_by = rows, (tokenizer, tokenizer_state(tokenizer))
        self._read = read_raw_data
        self._raw_data: Sequence[Any] | None = None
        self._digests: npt.NDArray[np.uint64] | None = None

    @classmethod
    def of(cls, rows: LabelledRows, tokenizer: object, raw_data: Sequence[Any]) -> LazyRows:
        """Rows of `raw_data`, just labelled."""
        made = cls(rows, tokenizer)
        made._remember(raw_data)
        return made

    def __getstate__(self) -> dict[str, Any]:
        """For a copy, whose tokenizer is another object: nothing is known of what that one makes."""
        return {**self.__dict__, "_labelled_by": (None, ())}

    def read_raw_data(self) -> Sequence[Any]:
        """The records of the file; how they are now is remembered."""
        assert self._read is not None
        raw_data = self._read()
        self._remember(raw_data)
        return raw_data

    def has_tokenizer(self, tokenizer: object) -> bool:
        """True if it is the one that labelled, with the same settings."""
        return tokenizer_state(tokenizer) == self._labelled_by[1]

    @property
    def can_change_unseen(self) -> bool:
        """True if the records are objects whose content cannot be compared."""
        return self._raw_data is not None and self._digests is None

    def is_of(self, dataset: LazyDataset, rows: Collection[int] | None = None) -> bool:
        """True if `dataset` has the tokenizer and the records that labelled, those apart that it has cached.

        rows: the records that are looked at; None: all, and the whole of the tokenizer's model.
        """
        if rows is None:
            look_at_model(dataset.tokenizer)
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
        found = _digests([records[row] for row in looked_at] if type(records) in (list, tuple) else records)
        if found is None or not np.array_equal(found, self._digests[looked_at]):
            return False
        self._raw_data = records
        return True

    def are_rows(self, cache: object, rows: Collection[int] | None = None) -> bool:
        """True if the items of `cache` are the rows of their numbers; rows: those that are looked at."""
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
    """Return a digest of 16 bytes for each record; None unless `records` is a plain list or tuple."""
    if type(records) not in (list, tuple):
        return None
    found = []
    for record in records:
        content = _content(record)
        if content is None:
            return None
        found.append(hashlib.blake2b(content, digest_size=_DIGEST_BYTES).digest())
    return np.frombuffer(b"".join(found), dtype=np.uint64).reshape(-1, _DIGEST_BYTES // 8)


def _content(record: Any) -> bytes | None:
    """By value: without marks of which texts are the same object."""
    try:
        return marshal.dumps(record, 0)
    except ValueError:  # not of Python's own types alone
        pass
    try:
        return pickle.dumps(record, protocol=5)
    except (pickle.PicklingError, TypeError, AttributeError, RecursionError):
        return None
