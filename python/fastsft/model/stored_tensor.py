"""Tensors of weight files as parts of parameters: some models have one parameter for many tensors."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of the files, and of the engine.

    first: its first element in the parameter, row by row. file_order: its number among all of the files.
    within: where the tensor has several parameters, the first element of this one in it.
    """

    name: str
    shape: tuple[int, ...]
    first: int = 0
    file_order: int = 0
    within: int | None = None

    @property
    def numel(self) -> int:
        """Of its elements."""
        return math.prod(self.shape)

    def part_of(self, parameter: torch.Tensor) -> torch.Tensor:
        """A view of `parameter`, or of anything of its shape."""
        if tuple(parameter.shape) == self.shape:
            return parameter
        return parameter.view(-1).narrow(0, self.first, self.numel).view(self.shape)
