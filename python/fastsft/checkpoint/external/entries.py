"""Entries of a state dict, name by name, and the tensors that become whole together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import nn

WRAPPERS = ("_fsdp_wrapped_module", "_orig_mod", "_checkpoint_wrapped_module")


class NotStreamable(Exception):
    """Why a model has to be saved by the code that made it."""


class Unit(Protocol):
    """Tensors that become whole together."""

    @property
    def is_sharded(self) -> bool:
        """True if `gather` is collective."""

    def prepare(self) -> None:
        """Whatever can fail on this rank alone, before the others wait for it."""

    def gather(self) -> list[torch.Tensor]:
        """The tensors, whole, on the CPU of rank 0; nothing elsewhere."""


@dataclass(frozen=True)
class Entry:
    """One name of the state dict. Entries with the same unit and position are one tensor (tied weights)."""

    name: str
    unit: Unit
    position: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    is_parameter: bool


class PlainTensor:
    """A tensor that every rank holds whole."""

    is_sharded = False

    def __init__(self, tensor: torch.Tensor, dtype: torch.dtype, rank: int) -> None:
        self._tensor, self._dtype, self._rank = tensor, dtype, rank

    def prepare(self) -> None:
        pass

    def gather(self) -> list[torch.Tensor]:
        return [self._tensor.detach().to("cpu", self._dtype)] if self._rank == 0 else []


def clean_name(name: str) -> str:
    """A name of the state dict without what wrappers put into it."""
    return ".".join(part for part in name.split(".") if part not in WRAPPERS)


def clean_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """(prefix of its tensors' names, module) of every module, shared ones under each of their names."""
    for name, module in model.named_modules(remove_duplicate=False):
        prefix = clean_name(name)
        yield (f"{prefix}." if prefix else ""), module


def check_has_values(name: str, tensor: torch.Tensor) -> None:
    """ValueError when a tensor is on the meta device; NotStreamable when it is no plain array of numbers."""
    if tensor.device.type == "meta":
        raise ValueError(f"{name}: expected weights to save, got a tensor on the meta device, without values")
    if tensor.layout is not torch.strided or tensor.is_quantized:
        raise NotStreamable(f"{name} is no plain tensor ({tensor.layout})")
