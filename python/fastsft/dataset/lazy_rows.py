"""The labelled rows of a data set whose records, tokenizer and items anybody may change."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fastsft.dataset.labelled_rows import LabelledRows
from fastsft.tokenizers.tokenizer_state import tokenizer_state

_MAX_COMPARED = 32  # items of a cache; of more, the items are read


class LazyRows:
    """`rows`, and what they were labelled from: records and `tokenizer` as they were then.

    read_raw_data: gives the records, where they came from a file and nobody has asked for them.
    """

    def __init__(
        self, rows: LabelledRows, tokenizer: Any, read_raw_data: Callable[[], Sequence[Any]] | None = None
    ) -> None:
        self.rows, self._labelled_by = rows, (tokenizer, tokenizer_state(tokenizer))
        self._read = read_raw_data
        self._raw_data: Sequence[Any] | None = None
        self._digest: bytes | None = None

    @classmethod
    def of(cls, rows: LabelledRows, tokenizer: Any, raw_data: Sequence[Any]) -> LazyRows:
        """Rows of `raw_data`, just labelled."""
        made = cls(rows, tokenizer)
        made._remember(raw_data)
        return made

    def read_raw_data(self) -> Sequence[Any]:
        """The records of the file; how they are now is remembered."""
        assert self._read is not None
        raw_data = self._read()
        self._remember(raw_data)
        return raw_data

    def has_tokenizer(self, tokenizer: Any) -> bool:
        """Whether it is the one that labelled, with the same settings."""
        return tokenizer_state(tokenizer) == self._labelled_by[1]

    def is_of(self, dataset: Any, *, whole: bool) -> bool:
        """Whether `dataset` has the records and the tokenizer that labelled; whole: also their content."""
        if not self.has_tokenizer(dataset.tokenizer):
            return False
        if "raw_data" not in dataset.__dict__:
            return self._read is not None
        is_same = dataset.raw_data is self._raw_data
        if not is_same or len(dataset.raw_data) != len(self.rows.native):
            return False
        if not whole:
            return True
        return self._digest is not None and _digest(dataset.raw_data) == self._digest

    def are_rows(self, cache: Any) -> bool:
        """Whether the few items of `cache` are the rows of their numbers; False for many."""
        return (
            isinstance(cache, Mapping)
            and len(cache) <= _MAX_COMPARED
            and all(self.rows.is_row(row, item) for row, item in cache.items())
        )

    def _remember(self, raw_data: Sequence[Any]) -> None:
        self._raw_data, self._digest = raw_data, _digest(raw_data)


class _Hasher:
    """A file that keeps the digest of what is written."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)

    def write(self, data: Any) -> int:
        self._hash.update(data)
        return len(data)

    def digest(self) -> bytes:
        return self._hash.digest()


def _digest(raw_data: Sequence[Any]) -> bytes | None:
    """Of lists of records by value; None for what may give something else each time it is asked."""
    if type(raw_data) not in (list, tuple):
        return None
    hasher = _Hasher()
    try:
        pickle.Pickler(hasher, protocol=5).dump(raw_data)
    except (pickle.PicklingError, TypeError, AttributeError, RecursionError):
        return None
    return hasher.digest()
