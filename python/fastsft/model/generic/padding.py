"""Right-padded rows, which every architecture accepts, and checks for rows that a model cannot compute."""

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


class Rows(Protocol):
    """A micro-batch's tokens. The micro-batch is a _C.Batch or a trial's batch.

    input_ids: int64 [tokens]. cu_seqlens: int32 [conversations + 1]. boundaries: cu_seqlens on the host,
    whose reading never waits for the device. is_key: uint8 [tokens], or [0] if no token is masked.
    max_seqlen: the longest conversation's tokens.
    """

    @property
    def input_ids(self) -> torch.Tensor: ...

    @property
    def cu_seqlens(self) -> torch.Tensor: ...

    @property
    def boundaries(self) -> list[int]: ...

    @property
    def is_key(self) -> torch.Tensor: ...

    @property
    def max_seqlen(self) -> int: ...


@dataclass(frozen=True)
class PaddedBatch:
    """A micro-batch as padded rows: input_ids and attention_mask [rows, width].

    token_indices: index of each micro-batch token in the flattened rows [rows * width].
    """

    input_ids: torch.Tensor
    attention_mask: torch.Tensor
    token_indices: torch.Tensor

    @classmethod
    def of(cls, batch: Rows) -> PaddedBatch:
        """Pad a micro-batch. A rank without rows gets two tokens without labels."""
        ids, ends = batch.input_ids, batch.cu_seqlens.to(torch.int64)
        lengths = ends[1:] - ends[:-1]
        rows, width = max(len(lengths), 1), max(int(batch.max_seqlen), 2)
        row = torch.repeat_interleave(
            torch.arange(len(lengths), device=ids.device), lengths, output_size=len(ids)
        )
        within = torch.arange(len(ids), device=ids.device) - ends[:-1][row]
        token_indices = row * width + within
        padded = ids.new_zeros(rows * width)
        mask = ids.new_zeros(rows * width)
        padded[token_indices] = ids
        mask[token_indices] = batch.is_key.to(mask.dtype) if batch.is_key.numel() else 1
        if not len(ids):
            mask.fill_(1)
        return cls(padded.view(rows, width), mask.view(rows, width), token_indices)

    def inputs(self) -> dict[str, torch.Tensor]:
        """Return the model's arguments."""
        return {"input_ids": self.input_ids, "attention_mask": self.attention_mask}


def most_positions(model: PreTrainedModel) -> int | None:
    """Return the position count if positions are rows in an embedding; None if they are computed."""
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    tokens = model.get_input_embeddings()
    tables = [table for table in model.modules() if isinstance(table, nn.Embedding) and table is not tokens]
    if not isinstance(positions, int) or not any(table.num_embeddings >= positions for table in tables):
        return None
    return positions


def _check_length(model: PreTrainedModel, length: int, row: int) -> None:
    most = most_positions(model)
    if most is not None and length > most:
        raise ValueError(
            f"row {row} has {length} tokens, but the model has {most} positions, in a table that is "
            f"not stretched; cut it to {most} tokens (conversations: --model_max_length {most})"
        )


_POSITIONS = (
    "position_ids: expected those of each row to be 0, 1, 2, ... with the generic engine, which leaves "
    "positions to the model; leave the column out, and pad rows on the right: masked tokens at the start of "
    "a row count as positions"
)
# In some models, a token whose keys are all masked attends to padding, so its loss would depend on the batch.
_FIRST = (
    "attention_mask: the row begins with masked tokens; with the generic engine leave those tokens out, or "
    "set their labels and the next one to -100"
)


def check_rows_for(
    model: PreTrainedModel, dataset: _C.TokenDataset, numbers: list[int] | None, *, training: bool
) -> None:
    """Raise ValueError, naming the row, if `model` cannot compute a row in `dataset`.

    numbers: row numbers in the user's data. training: True to skip rows without targets.
    """
    misplaced = dataset.first_misplaced(training)
    if misplaced is not None:
        row, begins_masked = misplaced
        raise ValueError(f"row {_number(row, numbers)}: {_FIRST if begins_masked else _POSITIONS}")
    lengths = dataset.lengths()
    if training:
        lengths = np.where(dataset.target_counts() > 0, lengths, 0)
    if len(lengths):
        row = int(np.argmax(lengths))
        _check_length(model, int(lengths[row]), _number(row, numbers))
        check_row_lengths(switch_length(model), dataset, numbers, training=training)


def _number(row: int, numbers: list[int] | None) -> int:
    return row if numbers is None else numbers[row]
