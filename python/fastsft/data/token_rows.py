"""The rows of a data set and their lengths, as far as they are known before an epoch reads the rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol, cast

import numpy as np
import numpy.typing as npt

from fastsft import _C
from fastsft.data.interfaces import WITHOUT_ROW, SizedDataset, is_plain_list, is_sized, is_table
from fastsft.data.item_rows import append_item
from fastsft.data.item_rules import ItemRules


class RowChecker(Protocol):
    """A model with a method that raises ValueError if rows do not fit the model."""

    def check_rows(self, native: _C.TokenDataset, *, training: bool) -> object: ...


class TokenRows:
    """The rows of a data set: lengths and counts for plans, and the rows themselves if they are native.

    native: a _C.TokenDataset, or None. is_read: True if every epoch reads the items again (batch_reads.py);
    `native` then has the rows that a container had at first. lengths: tokens of each row, without padding.
    target_counts: learned tokens of each row after the shift by one. label_counts: learned tokens of each row
    before this shift. is_exact: True if these three arrays (int64) are exact; otherwise they are bounds,
    which a row may exceed. padded_length: tokens of an item with padding, to count operations. source: the
    data set. rules: the rules for reading its items.
    """

    def __init__(
        self,
        native: _C.TokenDataset | None,
        padded_length: int,
        source: SizedDataset | None = None,
        *,
        is_read: bool = False,
        lengths: Lengths | None = None,
        bound: int = 0,
        count: int = 0,
        rules: ItemRules | None = None,
    ) -> None:
        self.native, self.padded_length, self._source = native, padded_length, source
        self.is_read, self.bound, self.rules = is_read, bound, rules
        self._stays_native = not is_read
        self.is_exact = not bound
        if bound:
            full = np.full(count, bound, dtype=np.int64)
            lengths = Lengths(full, np.maximum(full - 1, 0), full, full)
        if lengths is None:
            assert native is not None  # otherwise lengths or a bound are given
            lengths = lengths_of(native, np.full(len(native), padded_length, dtype=np.int64))
        self.lengths, self.target_counts, self.label_counts, self._item_lengths = lengths

    @property
    def source(self) -> SizedDataset:
        """The data set. ValueError if the rows were made without a data set."""
        if self._source is None:
            raise ValueError("these rows are of no data set: they were made of native rows alone")
        return self._source

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def has_labels(self) -> bool:
        """True unless the rules allow items without labels and the items have no labels."""
        return self.rules is None or self.native is None or self.rules.has_labels

    @property
    def num_samples(self) -> int:
        """The data set's row count."""
        return len(self)

    @property
    def longest(self) -> int:
        """The largest token count of a row, for plans; the assumed bound if `is_exact` is False.

        0 without rows.
        """
        return int(self.lengths.max()) if len(self) else 0

    def item_lengths(self, column: str | None = None) -> npt.NDArray[np.int64]:
        """Return each item's token count, with padding.

        column: if a datasets.Dataset has a column with this name, the counts are read from that column.
        """
        source = self._source
        if column is not None and is_table(source) and column in source.column_names:
            return np.asarray(source[column], dtype=np.int64)
        return self._item_lengths

    def checksum(self) -> str | None:
        """Return the CRC-32C of all ids and learned spans; None if rows are not native."""
        return None if self.native is None else f"{self.native.checksum():08x}"

    def check_for(self, model: RowChecker, vocab_size: int, *, training: bool = True) -> None:
        """Raise ValueError, the same on every rank, if rows do not fit `model` or have ids >= `vocab_size`.

        training: True to ignore rows without targets, which training does not compute. Rows that are not
        known yet are checked when they are read.
        """
        if self.native is not None:
            self.check_ids(vocab_size)
            model.check_rows(self.native, training=training)

    def check_ids(self, vocab_size: int) -> None:
        """Raise ValueError, the same on every rank, if a row has an id >= `vocab_size`."""
        if self.native is not None and self.native.max_id >= vocab_size:
            raise ValueError(
                f"the data has token id {self.native.max_id}, the model knows {vocab_size}; {WITHOUT_ROW}"
            )

    def with_bound(self, bound: int) -> TokenRows:
        """Return the same rows, with `bound` tokens as the bound of each row's length."""
        return TokenRows(
            self.native, self.padded_length, self._source, is_read=self.is_read, bound=bound, count=len(self),
            rules=self.rules,
        )  # fmt: skip

    def as_items(self) -> TokenRows:
        """Return the rows of the same data set, without native rows: every epoch reads the items."""
        return TokenRows(
            None, self.padded_length, self._source, is_read=True, bound=self.longest, count=len(self),
            rules=self.rules,
        )  # fmt: skip

    def read_by_item(self) -> TokenRows:
        """Return the same rows, but let every epoch read the items.

        Used if the row order must be drawn with the random numbers of a reader.
        """
        if self.is_read:
            return self
        lengths = Lengths(self.lengths, self.target_counts, self.label_counts, self._item_lengths)
        rows = TokenRows(
            self.native, self.padded_length, self._source, is_read=True, lengths=lengths, rules=self.rules
        )
        rows._stays_native = True
        return rows

    def is_current(self) -> bool:
        """True if the data set still has these rows.

        The contents of fastsft's own data sets are compared; of other data sets, only the row count.
        """
        if self.is_read and not self._stays_native:
            return len(self.source) == len(self) and untouched_rows(self.source) is None
        return self._source is None or untouched_rows(self._source) is self.native

    def take(self, numbers: object) -> None:
        """Record that these rows are trained now, because a data loader would read them at this time.

        ValueError if a script has changed these rows of fastsft's own data set since the epoch began.
        """
        still_has = getattr(self._source, "still_has", None)
        if self.is_read or still_has is None:
            return
        if not still_has(numbers):
            raise ValueError(
                f"{type(self._source).__name__}: its class, methods or contents were changed while train() "
                "runs in the middle of an epoch, and fastsft has read its rows before; change it before "
                "train(), or at on_epoch_begin"
            )
        self.note_read(numbers)

    def note_read(self, numbers: object) -> None:
        """Tell fastsft's own data set that these rows count as read by a data loader."""
        note = getattr(self._source, "note_read", None)
        if note is not None and not self.is_read:
            note(numbers)

    @classmethod
    def from_dataset(
        cls,
        dataset: object,
        model_max_length: int,
        *,
        collated: bool = False,
        rules: ItemRules | None = None,
    ) -> TokenRows:
        """Return the rows of any data set with a length and rows by number.

        Rows of fastsft's own data sets are native as long as they are unchanged. Items of all other data sets
        have `input_ids` and `labels` (item_rows.py), and every epoch reads them. Only containers
        (`is_container`) are read here, to find errors early; the rows of all other data sets count as
        `model_max_length` tokens long. collated: True if a data_collator makes the rows, so that they are
        unknown. rules: the Trainer's rules for reading items. ValueError if the data set has no length, and
        as in `append_item`.
        """
        native = None if collated else untouched_rows(dataset)
        if native is not None:
            # A data set with native rows has a length and rows by number.
            return cls(native, model_max_length, cast("SizedDataset", dataset), rules=rules)
        source = check_sized(dataset)
        if not collated and is_container(source):
            native, lengths = scan(source, rules)
            padded = int(lengths.items[-1]) if len(native) else model_max_length
            return cls(native, padded, source, is_read=True, lengths=lengths, rules=rules)
        known = None if collated else lengths_of_parts(source, model_max_length)
        return cls(
            None, model_max_length, source, is_read=True, lengths=known, count=len(source), rules=rules,
            bound=0 if known is not None else model_max_length,
        )  # fmt: skip


def check_sized(dataset: object) -> SizedDataset:
    """Return `dataset`. ValueError unless it is a data set with a length and rows by number."""
    if isinstance(dataset, Mapping):
        raise ValueError(
            f"expected one data set, got a dictionary of {', '.join(map(str, dataset))}; give one of them"
        )
    import torch

    iterable = isinstance(dataset, torch.utils.data.IterableDataset)
    if iterable or not is_sized(dataset):
        raise ValueError(
            f"expected a data set with a length and rows by number, got {type(dataset).__name__}; "
            "list(dataset) makes one of what can only be iterated"
        )
    return dataset


class Lengths(NamedTuple):
    """Four counts for every row, int64.

    tokens: tokens without padding. targets: learned tokens after the shift by one. labels: learned tokens
    before this shift. items: tokens with padding.
    """

    tokens: npt.NDArray[np.int64]
    targets: npt.NDArray[np.int64]
    labels: npt.NDArray[np.int64]
    items: npt.NDArray[np.int64]


def untouched_rows(dataset: object, *, label: bool = True) -> _C.TokenDataset | None:
    """Return the native rows of a data set of fastsft if its items equal these rows; otherwise None.

    label: see `LazySupervisedDataset.untouched_rows`.
    """
    rows_of = getattr(type(dataset), "untouched_rows", None)
    rows: _C.TokenDataset | None = None if rows_of is None else rows_of(dataset, label=label)
    return rows


def is_container(dataset: object) -> bool:
    """True if a row can be read without running a script's code.

    This holds for lists of dictionaries, and for a datasets.Dataset without a transform.
    """
    if is_plain_list(dataset):
        return all(type(item) is dict or type(item).__name__ == "BatchEncoding" for item in dataset)
    return is_table(dataset) and dataset.format["type"] != "custom"


def scan(dataset: SizedDataset, rules: ItemRules | None) -> tuple[_C.TokenDataset, Lengths]:
    """Read all items of a container now. Return native rows and their lengths.

    ValueError if an item cannot be trained on (`append_item`).
    """
    native, items = _C.TokenDataset(), []
    for row in range(len(dataset)):
        items.append(append_item(native, dataset[row], row, rules))
    return native, lengths_of(native, np.asarray(items, dtype=np.int64))


def lengths_of(native: _C.TokenDataset, items: npt.NDArray[np.int64]) -> Lengths:
    """Return the counts of native rows. items: the tokens of each row with padding."""
    return Lengths(native.lengths(), native.target_counts(), native.label_counts(), items)


def lengths_of_parts(dataset: object, width: int) -> Lengths | None:
    """Return the counts of the rows in a Subset or ConcatDataset of torch; None if they are not known.

    They are known if the data sets inside are fastsft's own and unchanged. width: tokens of a row with
    padding.
    """
    from torch.utils.data import ConcatDataset, Subset

    native = untouched_rows(dataset)
    if native is not None:
        return lengths_of(native, np.full(len(native), width, np.int64))
    if type(dataset) is Subset:
        whole = lengths_of_parts(dataset.dataset, width)
        chosen = np.asarray(dataset.indices, dtype=np.int64)
        return None if whole is None else Lengths(*(column[chosen] for column in whole))
    if type(dataset) is ConcatDataset:
        parts = [lengths_of_parts(part, width) for part in dataset.datasets]
        lengths = [part for part in parts if part is not None]
        if len(lengths) == len(parts):
            return Lengths(*(np.concatenate(columns) for columns in zip(*lengths, strict=True)))
    return None
