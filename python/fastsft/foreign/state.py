"""The state dict of a model that others trained: what every tensor is, and how it becomes whole on rank 0."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn

from fastsft.launcher import Launch

_WRAPPERS = ("_fsdp_wrapped_module", "_orig_mod", "_checkpoint_wrapped_module")


class NotStreamable(Exception):
    """Why a model has to be saved by the code that made it."""


class Unit(Protocol):
    """Tensors that become whole together."""

    @property
    def is_sharded(self) -> bool:
        """Whether `gather` is collective."""

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


def state_entries(model: nn.Module, place: Launch) -> list[Entry]:
    """What `unwrapped(model).state_dict()` names, in its order, without gathering anything.

    NotStreamable when the model's modules save more than parameters and buffers; ValueError when weights are
    on the meta device.
    """
    if wrapped_by_fsdp1(model):
        from fastsft.foreign.flat_units import flat_state_entries

        return flat_state_entries(model, unwrapped(model), place)
    entries, units = [], dict[int, Unit]()
    for name, tensor in unwrapped(model).state_dict(keep_vars=True).items():
        if not isinstance(tensor, torch.Tensor):
            raise NotStreamable(f"its state holds {name}, which is no tensor")
        unit = units.setdefault(_identity(tensor), _unit_of(name, tensor, place.rank))
        entries.append(
            Entry(
                clean_name(name), unit, 0, tuple(tensor.shape), tensor.dtype, isinstance(tensor, nn.Parameter)
            )
        )
    return entries


def unwrapped(model: Any) -> Any:
    """The model inside DDP, FSDP1, torch.compile and activation checkpointing."""
    while True:
        inner = getattr(model, "module", None) if isinstance(model, _replicas()) else None
        for name in _WRAPPERS:
            inner = getattr(model, "_modules", {}).get(name, inner)
        if inner is None:
            return model
        model = inner


def wrapped_by_fsdp1(model: Any) -> bool:
    """Whether PyTorch's first FSDP wraps the model or modules in it."""
    # A model cannot be wrapped by what nobody imported, and the import is slow.
    module = sys.modules.get("torch.distributed.fsdp")
    wrapper = getattr(module, "FullyShardedDataParallel", None)
    modules = getattr(model, "modules", None)
    return wrapper is not None and callable(modules) and any(isinstance(part, wrapper) for part in modules())


def clean_name(name: str) -> str:
    """A name of the state dict without what wrappers put into it."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


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


def _replicas() -> tuple[type, ...]:
    return (nn.parallel.DistributedDataParallel, nn.DataParallel)


def _is_distributed(tensor: torch.Tensor) -> bool:
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def _identity(tensor: torch.Tensor) -> Any:
    # DTensors by object: where a rank's part is empty, addresses would decide otherwise than elsewhere.
    if _is_distributed(tensor) or tensor.numel() == 0 or tensor.device.type == "meta":
        return id(tensor)
    return (tensor.data_ptr(), tensor.device, tensor.dtype, tensor.shape, tensor.stride())


def _unit_of(name: str, tensor: torch.Tensor, rank: int) -> Unit:
    check_has_values(name, tensor)
    if _is_distributed(tensor):
        from fastsft.foreign.distributed_tensor import DistributedTensor

        return DistributedTensor(tensor, rank)
    return PlainTensor(tensor, tensor.dtype, rank)
