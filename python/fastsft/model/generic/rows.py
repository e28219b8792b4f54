"""Rows that a model of transformers takes as they are: looked at before any of them is computed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fastsft.model.generic.padding import check_length
from fastsft.model.generic.switching_rope import switch_length
from fastsft.model.rotary_switch import check_row_lengths

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from fastsft import _C

_POSITIONS = (
    "position_ids: expected those of each row to be 0, 1, 2, ... with the generic engine, which leaves "
    "positions to the model; leave the column out, and pad rows on the right: masked tokens at the start of "
    "a row count as positions"
)
# A token that sees nothing attends to padding in some models, so that its loss depends on the batch.
_FIRST = (
    "attention_mask: the row begins with masked tokens; with the generic engine leave those tokens out, or "
    "set their labels and the next one to -100"
)


def check_rows_for(
    model: PreTrainedModel, native: _C.TokenDataset, numbers: list[int] | None, *, training: bool
) -> None:
    """ValueError, naming the row, for one of the _C.TokenDataset `native` that `model` does not take.

    numbers: of its rows in the user's data. training: rows without a target are not computed.
    """
    found = native.first_misplaced(training)
    if found is not None:
        row, begins_masked = found
        raise ValueError(f"row {_number(row, numbers)}: {_FIRST if begins_masked else _POSITIONS}")
    lengths = native.lengths()
    if training:
        lengths = np.where(native.target_counts() > 0, lengths, 0)
    if len(lengths):
        row = int(np.argmax(lengths))
        longest = int(lengths[row])
        check_length(model, longest, f"row {_number(row, numbers)}")
        check_row_lengths(switch_length(model), native, numbers, training=training)


def _number(row: int, numbers: list[int] | None) -> int:
    return row if numbers is None else numbers[row]
