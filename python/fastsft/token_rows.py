"""Any data set with FastChat's items as native token rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from fastsft import _C


class TokenRows:
    """A native TokenDataset with what plans need of it.

    `lengths` and `target_counts`: int64 per row, without padding. `padded_length`: tokens of an item as
    FastChat pads it, for the count of operations.
    """

    def __init__(self, native: Any, padded_length: int) -> None:
        self.native = native
        self.padded_length = padded_length
        self.lengths: npt.NDArray[np.int64] = native.lengths()
        self.target_counts: npt.NDArray[np.int64] = native.target_counts()

    def __len__(self) -> int:
        return len(self.lengths)

    def check_ids(self, vocab_size: int) -> None:
        """ValueError on every rank alike when the model's vocabulary does not hold all ids."""
        if self.native.max_id >= vocab_size:
            raise ValueError(
                f"the data has token id {self.native.max_id}, the model knows {vocab_size}; "
                "do tokenizer and model belong together?"
            )

    @classmethod
    def of(cls, dataset: Any, model_max_length: int) -> TokenRows:
        """Rows of a fastsft data set, or copied from items with `input_ids`, `labels` and `attention_mask`.

        ValueError when an item has labels that are neither -100 nor its own ids, or is padded on the left.
        """
        native = getattr(dataset, "native", None)
        if native is not None:
            return cls(native, model_max_length)
        native, padded = _C.TokenDataset(), model_max_length
        for row in range(len(dataset)):
            item = dataset[row]
            ids, labels = np.asarray(item["input_ids"]), np.asarray(item["labels"])
            padded = len(ids)
            size = _real_length(item, ids, labels, row)
            native.append(ids[:size].astype(np.int32), _learned_spans(ids[:size], labels[:size], row))
        return cls(native, padded)


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
