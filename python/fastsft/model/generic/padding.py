"""A micro-batch without padding as right-padded rows, which every architecture takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from torch import nn

from fastsft.model.context_length import check_row_lengths, switch_length

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from fastsft import _C


@dataclass(frozen=True)
class PaddedBatch:
    """input_ids and attention_mask [rows, width]; places: of each token of the batch in the flat rows."""

    input_ids: torch.Tensor
    attention_mask: torch.Tensor
    places: torch.Tensor

    @classmethod
    def of(cls, batch: Rows) -> PaddedBatch:
        """At least one row of two tokens: ranks without rows compute it without labels."""
        ids, ends = batch.input_ids, batch.cu_seqlens.to(torch.int64)
        lengths = ends[1:] - ends[:-1]
        rows, width = max(len(lengths), 1), max(int(batch.max_seqlen), 2)
        row = torch.repeat_interleave(torch.arange(len(lengths), device=ids.device), lengths)
        within = torch.arange(len(ids), device=ids.device) - ends[:-1][row]
        places = row * width + within
        padded = ids.new_zeros(rows * width)
        mask = ids.new_zeros(rows * width)
        padded[places] = ids
        mask[places] = batch.is_key.to(mask.dtype) if batch.is_key.numel() else 1
        if not len(ids):
            mask.fill_(1)
        return cls(padded.view(rows, width), mask.view(rows, width), places)

    def inputs(self) -> dict[str, torch.Tensor]:
        """Arguments of the model."""
        return {"input_ids": self.input_ids, "attention_mask": self.attention_mask}


def most_positions(model: PreTrainedModel) -> int | None:
    """Positions of a model that looks them up in a table; None where it computes them."""
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    tokens = model.get_input_embeddings()
    tables = [each for each in model.modules() if isinstance(each, nn.Embedding) and each is not tokens]
    if not isinstance(positions, int) or not any(each.num_embeddings >= positions for each in tables):
        return None
    return positions


def check_length(model: PreTrainedModel, longest: int, where: str) -> None:
    """ValueError for a row of `longest` tokens where a table of positions ends before. where: the row."""
    most = most_positions(model)
    if most is not None and longest > most:
        raise ValueError(
            f"{where} has {longest} tokens, but the model has {most} positions, in a table that is "
            f"not stretched; cut it to {most} tokens (conversations: --model_max_length {most})"
        )


class Rows(Protocol):
    """The part of _C.Batch that says which tokens are whose."""

    @property
    def input_ids(self) -> torch.Tensor:
        """[tokens] int64"""

    @property
    def cu_seqlens(self) -> torch.Tensor:
        """[conversations + 1] int32"""

    @property
    def is_key(self) -> torch.Tensor:
        """[tokens] uint8, or [0] where all are keys"""

    @property
    def max_seqlen(self) -> int:
        """Tokens of the longest conversation."""


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
