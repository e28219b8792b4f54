"""Any data set with FastChat's items as native token rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from fastsft import _C
from fastsft.dataset.item_rows import append_item
from fastsft.dataset.item_rules import ItemRules


class TokenRows:
    """A native TokenDataset with what plans need of it.

    `lengths`, `target_counts` (learned after the shift by one) and `label_counts` (before it): int64 per row,
    without padding. `padded_length`: tokens of an item as
    FastChat pads it, for the count of operations. source: the data set that the rows come from.
    """

    def __init__(
        self, native: Any, padded_length: int, item_lengths: list[int] | None = None, source: Any = None
    ) -> None:
        self.native = native
        self.padded_length = padded_length
        self._item_lengths, self._source = item_lengths, source
        self.lengths: npt.NDArray[np.int64] = native.lengths()
        self.target_counts: npt.NDArray[np.int64] = native.target_counts()
        self.label_counts: npt.NDArray[np.int64] = native.label_counts()

    def __len__(self) -> int:
        return len(self.lengths)

    def item_lengths(self, column: str | None = None) -> npt.NDArray[np.int64]:
        """Tokens of each item with its padding; those of `column`, where a datasets.Dataset has it."""
        if column is not None and column in (getattr(self._source, "column_names", None) or ()):
            return np.asarray(self._source[column], dtype=np.int64)
        if self._item_lengths is not None:
            return np.asarray(self._item_lengths, dtype=np.int64)
        return np.full(len(self), self.padded_length, dtype=np.int64)

    def check_ids(self, vocab_size: int) -> None:
        """ValueError on every rank alike when the model's vocabulary does not hold all ids."""
        if self.native.max_id >= vocab_size:
            raise ValueError(
                f"the data has token id {self.native.max_id}, the model knows {vocab_size}; "
                "do tokenizer and model belong together?"
            )

    @classmethod
    def of(
        cls,
        dataset: Any,
        model_max_length: int,
        collated: Callable[[Any], Any] | None = None,
        rules: ItemRules | None = None,
    ) -> TokenRows:
        """Rows of a fastsft data set, or copied from items with `input_ids` and `labels` (item_rows.py).

        dataset: anything with `len` and rows by number, of tensors, arrays or lists. Every item is read once,
        here. collated: makes the final rows of the data set (collators.py). rules: how a Trainer reads items.
        ValueError for a data set without a length, and for items that `append_item` refuses.
        """
        native = getattr(dataset, "native", None)
        if native is not None and collated is None:
            return cls(native, model_max_length)
        _check_sized(dataset)
        rows = dataset if collated is None else collated(dataset)
        native, padded, item_lengths = _C.TokenDataset(), model_max_length, []
        for row in range(len(dataset)):
            padded = append_item(native, rows[row], row, rules)
            item_lengths.append(padded)
        return cls(native, padded, item_lengths, dataset)


def _check_sized(dataset: Any) -> None:
    if isinstance(dataset, Mapping):
        raise ValueError(
            f"expected one data set, got a dictionary of {', '.join(map(str, dataset))}; give one of them"
        )
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise ValueError(
            f"expected a data set with a length and rows by number, got {type(dataset).__name__}; "
            "list(dataset) makes one of what can only be iterated"
        )
