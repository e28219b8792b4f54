"""Any data set with FastChat's items as native token rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from fastsft import _C


class TokenRows:
    """A native TokenDataset with what plans need of it.

    `lengths` and `target_counts`: int64 per row, without padding. `padded_length`: tokens of an item as
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
    ) -> TokenRows:
        """Rows of a fastsft data set, or copied from items with `input_ids`, `labels` and `attention_mask`.

        dataset: anything with `len` and rows by number, of tensors, arrays or lists. Every item is read once,
        here. collated: makes the final rows of the data set (collators.py). ValueError for a data set without
        a length, items without these keys or of other shapes, labels that are neither -100 nor the ids, and
        padding on the left.
        """
        native = getattr(dataset, "native", None)
        if native is not None and collated is None:
            return cls(native, model_max_length)
        _check_sized(dataset)
        rows = dataset if collated is None else collated(dataset)
        native, padded, item_lengths = _C.TokenDataset(), model_max_length, []
        for row in range(len(dataset)):
            item = rows[row]
            ids, labels = _ids_and_labels(item, row)
            padded = len(ids)
            item_lengths.append(padded)
            size = _real_length(item, ids, labels, row)
            native.append(ids[:size].astype(np.int32), _learned_spans(ids[:size], labels[:size], row))
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


def _ids_and_labels(item: Any, row: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    missing = [name for name in ("input_ids", "labels") if name not in item]
    if missing:
        raise ValueError(f"row {row}: expected input_ids and labels, got {', '.join(map(str, item))}")
    ids, labels = np.asarray(item["input_ids"]), np.asarray(item["labels"])
    if ids.ndim != 1 or ids.shape != labels.shape:
        raise ValueError(
            f"row {row}: expected input_ids and labels of one length, got {list(ids.shape)} and "
            f"{list(labels.shape)}"
        )
    return ids, labels


def _real_length(item: Any, ids: npt.NDArray[Any], labels: npt.NDArray[Any], row: int) -> int:
    mask = (
        np.asarray(item["attention_mask"]).astype(bool)
        if "attention_mask" in item
        else np.ones(len(ids), bool)
    )
    kept = np.flatnonzero(mask | (labels != -100))
    if len(kept) and not mask[0]:
        raise ValueError(
            f"row {row}: padded on the left; fastsft trains right-padded items, use --padding_side right"
        )
    return int(kept[-1]) + 1 if len(kept) else 0


def _learned_spans(ids: npt.NDArray[Any], labels: npt.NDArray[Any], row: int) -> list[tuple[int, int]]:
    learned = labels != -100
    if not np.array_equal(ids[learned], labels[learned]):
        at = int(np.flatnonzero(learned & (ids != labels))[0])
        raise ValueError(
            f"row {row}: expected label {at} to be -100 or the id {ids[at]}, got {labels[at]}; "
            "labels are not shifted"
        )
    edges = np.flatnonzero(np.diff(np.concatenate(([0], learned.astype(np.int8), [0]))))
    return [(int(begin), int(end)) for begin, end in zip(edges[::2], edges[1::2], strict=True)]
