"""Lengths of rows that can be looked at before training, because looking changes nothing."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fastsft import _C
from fastsft.data.interfaces import SizedDataset, is_plain_list
from fastsft.data.interfaces import is_table as is_table
from fastsft.data.item_rows import append_item
from fastsft.data.item_rules import ItemRules


class Lengths(NamedTuple):
    """Of every row, int64: tokens without padding, targets (learned after the shift by one), learned labels
    before the shift, and tokens of its item with padding."""

    tokens: npt.NDArray[np.int64]
    targets: npt.NDArray[np.int64]
    labels: npt.NDArray[np.int64]
    items: npt.NDArray[np.int64]


def untouched_rows(dataset: object, *, label: bool = True) -> _C.TokenDataset | None:
    """The native rows of fastsft's own data sets while their items are those rows; else None (data.py)."""
    rows_of = getattr(type(dataset), "untouched_rows", None)
    rows: _C.TokenDataset | None = None if rows_of is None else rows_of(dataset, label=label)
    return rows


def is_container(dataset: object) -> bool:
    """True if reading a row runs nobody's code: lists of dictionaries, datasets.Dataset without transform."""
    if is_plain_list(dataset):
        return all(type(item) is dict or type(item).__name__ == "BatchEncoding" for item in dataset)
    return is_table(dataset) and dataset.format["type"] != "custom"


def scan(dataset: SizedDataset, rules: ItemRules | None) -> tuple[_C.TokenDataset, Lengths]:
    """Native rows of a container as it is now, and their lengths. ValueError as `append_item`."""
    native, items = _C.TokenDataset(), []
    for row in range(len(dataset)):
        items.append(append_item(native, dataset[row], row, rules))
    return native, lengths_of(native, np.asarray(items, dtype=np.int64))


def lengths_of(native: _C.TokenDataset, items: npt.NDArray[np.int64]) -> Lengths:
    """Of the rows of a _C.TokenDataset, whose items have so many tokens with padding."""
    return Lengths(native.lengths(), native.target_counts(), native.label_counts(), items)


def lengths_of_parts(dataset: object, width: int) -> Lengths | None:
    """Of torch's Subset and ConcatDataset, where those of all their parts are known; else None."""
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
        known = [part for part in parts if part is not None]
        if len(known) == len(parts):
            return Lengths(*(np.concatenate(columns) for columns in zip(*known, strict=True)))
    return None
