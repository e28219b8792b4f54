"""Batches that were read, as a native data set."""

from __future__ import annotations

import numpy as np

from fastsft import _C
from fastsft.data.batch_reads import ReadBatch
from fastsft.data.interfaces import WITHOUT_ROW
from fastsft.data.item_rows import append_item
from fastsft.data.item_rules import ItemRules


def join_batches(
    batches: list[list[ReadBatch]], rules: ItemRules | None, size: int | None = None
) -> tuple[_C.TokenDataset, list[int]]:
    """A native data set of batches [micro-batch][rank], and of each of its rows the number in the data set.

    rules: how the items are read. Every batch counts as long as `size`, or as the longest: rows without
    tokens, which are never computed, fill it up. ValueError as `append_item`, and for a batch longer than
    `size`.
    """
    native, numbers = _C.TokenDataset(), []
    flat = [batch for ranks in batches for batch in ranks]
    longest = max((len(batch.items) for batch in flat), default=0)
    if size is not None and longest > size:
        raise ValueError(
            f"evaluation: data_collator makes {longest} rows of a batch of {size}, expected a row for each"
        )
    nothing = np.zeros(0, dtype=np.int32)
    for batch in flat:
        for place in range(longest if size is None else size):
            number = batch.number_of(place)
            numbers.append(number)
            if place < len(batch.items):
                append_item(native, batch.items[place].item, number, rules)
            else:
                native.append(nothing, [])
    return native, numbers


def check_ids(native: _C.TokenDataset, numbers: list[int], vocab_size: int) -> None:
    """ValueError, naming the row, when the model's vocabulary does not hold all ids."""
    if native.max_id < vocab_size:
        return
    for place, number in enumerate(numbers):
        ids = native.ids(place)
        if len(ids) and int(ids.max()) >= vocab_size:
            raise ValueError(
                f"row {number} has token id {int(ids.max())}, the model knows {vocab_size}; {WITHOUT_ROW}"
            )
