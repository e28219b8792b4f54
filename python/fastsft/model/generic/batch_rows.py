"""A micro-batch as it is put into rows."""

from __future__ import annotations

from typing import Protocol

import torch


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
