"""A `data_collator` of a Trainer: the engine packs rows, so that it is asked for one row at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from fastsft.dataset.item_rules import check_inputs

# They stack rows or fill them up, which packing makes needless; labels stay those of the items.
_STACKING = (
    "default_data_collator", "torch_default_data_collator", "numpy_default_data_collator", "default_collate",
    "DefaultDataCollator", "DataCollatorWithPadding", "DataCollatorForSeq2Seq",
)  # fmt: skip
_IGNORED = -100
# What transformers' Trainer hands to a collator unless --remove_unused_columns False.
_OF_FORWARD = (
    "input_ids", "attention_mask", "position_ids", "inputs_embeds", "labels", "label", "label_ids",
)  # fmt: skip
_ROW = ("input_ids", "labels", "attention_mask", "position_ids")
_PROBED = 4

Row = dict[str, npt.NDArray[Any]]


def collator_name(collator: Any) -> str:
    """What messages call it."""
    return str(getattr(collator, "__name__", type(collator).__name__))


def only_stacks(collator: Any) -> bool:
    """Whether `collator` is None or known to stack and pad alone: nothing calls it then.

    ValueError for one of those that pads labels with a value that would be learned.
    """
    if collator is None:
        return True
    pad_label = getattr(collator, "label_pad_token_id", _IGNORED)
    if pad_label != _IGNORED:
        raise ValueError(
            f"Trainer: data_collator {collator_name(collator)} has label_pad_token_id {pad_label}: padding "
            f"would be learned; make it {_IGNORED}, or leave the collator out: fastsft pads nothing"
        )
    return collator_name(collator) in _STACKING


class CollatedRows:
    """The rows of `dataset` as `collator` makes them, each alone; for TokenRows.

    all_columns: hand over every key of an item, not only what a model's forward takes. ValueError for a
    collator that has no place here: one that mixes the rows of a batch, chooses anew each time, or gives
    something else than input_ids and labels with a row for each item.
    """

    def __init__(self, dataset: Any, collator: Any, *, all_columns: bool = False) -> None:
        self._dataset, self._collator, self._all_columns = dataset, collator, all_columns
        self._check()

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, row: int) -> Row:
        return self._collate([row])[0]

    def _collate(self, rows: list[int]) -> list[Row]:
        batch = self._collator([self._item(row) for row in rows])
        if not isinstance(batch, Mapping) or not {"input_ids", "labels"} <= set(batch):
            got = ", ".join(map(str, batch)) if isinstance(batch, Mapping) else type(batch).__name__
            raise self._refusal(f"gives {got}, expected input_ids and labels")
        names = [name for name in _ROW if batch.get(name) is not None]
        check_inputs(set(batch) - set(_ROW), f"data_collator {collator_name(self._collator)}", removed=False)
        columns = {name: np.asarray(batch[name]) for name in names}
        if any(column.ndim != 2 or len(column) != len(rows) for column in columns.values()):
            shapes = {name: list(column.shape) for name, column in columns.items()}
            raise self._refusal(f"makes {shapes} of {len(rows)} rows, expected a row for each")
        return [{name: columns[name][at] for name in names} for at in range(len(rows))]

    def _item(self, row: int) -> Any:
        item = self._dataset[row]
        if self._all_columns or not isinstance(item, dict):
            return item
        return {name: item[name] for name in item if name in _OF_FORWARD}

    def _check(self) -> None:
        """On the first rows: alone, once more, and together."""
        rows = list(range(min(_PROBED, len(self))))
        alone = [self[row] for row in rows]
        if any(not _is_same(self[row], alone[row]) for row in rows):
            raise self._refusal("makes something else of a row each time")
        together = self._collate(rows) if rows else []
        if not all(_is_padded(whole, row) for whole, row in zip(together, alone, strict=True)):
            raise self._refusal("makes something else of a row among others than of the row alone")

    def _refusal(self, reason: str) -> ValueError:
        return ValueError(
            f"Trainer: data_collator {collator_name(self._collator)} {reason}; fastsft packs rows itself, "
            "and asks a collator for each row alone, once: leave it out, and let the items of the data set "
            "have their final input_ids and labels"
        )


def _is_same(one: Row, other: Row) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


def _is_padded(whole: Row, row: Row) -> bool:
    """Whether `whole` is `row` with padding on one side that changes nothing of it.

    In front of a row it is masked, and its last token predicts nothing.
    """
    size, width = len(row["input_ids"]), len(whole["input_ids"])
    for begin in {0, width - size}:
        part = {name: whole[name][begin : begin + size] for name in whole}
        learned = int(np.count_nonzero(whole["labels"] != _IGNORED))
        if not _is_same(part, row) or learned != np.count_nonzero(row["labels"] != _IGNORED):
            continue
        masked = "attention_mask" in whole and not whole["attention_mask"][:begin].any()
        if begin == 0 or (masked and row["labels"][0] == _IGNORED):
            return True
    return False
