"""A micro-batch without padding as right-padded rows, which every architecture takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn

from fastsft.model.generic.batch_rows import Rows

if TYPE_CHECKING:
    from transformers import PreTrainedModel


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
