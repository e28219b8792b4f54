"""The state dict of a model that others trained: what every tensor is, and how it becomes whole on rank 0."""

from __future__ import annotations

import sys
from collections.abc import Hashable
from typing import TYPE_CHECKING

import torch
from torch import nn

from fastsft.checkpoint.external.distributed_tensor import DistributedTensor
from fastsft.checkpoint.external.entries import (
    WRAPPERS,
    Entry,
    NotStreamable,
    PlainTensor,
    Unit,
    check_has_values,
    clean_name,
)
from fastsft.checkpoint.external.flat_units import flat_state_entries
from fastsft.runtime.launch import Launch

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor
    from typing_extensions import TypeIs


def state_entries(model: nn.Module, place: Launch) -> list[Entry]:
    """The entries of `unwrapped(model).state_dict()`, in its order, without gathering anything.

    NotStreamable when the model's modules save more than parameters and buffers; ValueError when weights are
    on the meta device.
    """
    if wrapped_by_fsdp1(model):
        return flat_state_entries(model, unwrapped(model), place)
    entries, units = [], dict[Hashable, Unit]()
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


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside DDP, FSDP1, torch.compile and activation checkpointing."""
    while True:
        inner = getattr(model, "module", None) if isinstance(model, _replicas()) else None
        for name in WRAPPERS:
            inner = getattr(model, "_modules", {}).get(name, inner)
        if inner is None:
            return model
        model = inner


def wrapped_by_fsdp1(model: object) -> bool:
    """True if PyTorch's first FSDP wraps the model or modules in it."""
    # A model cannot be wrapped by what nobody imported, and the import is slow.
    module = sys.modules.get("torch.distributed.fsdp")
    wrapper = getattr(module, "FullyShardedDataParallel", None)
    modules = getattr(model, "modules", None)
    return wrapper is not None and callable(modules) and any(isinstance(part, wrapper) for part in modules())


def _replicas() -> tuple[type, ...]:
    return (nn.parallel.DistributedDataParallel, nn.DataParallel)


def _is_distributed(tensor: torch.Tensor) -> TypeIs[DTensor]:
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def _identity(tensor: torch.Tensor) -> Hashable:
    # DTensors by object: where a rank's part is empty, addresses would decide otherwise than elsewhere.
    if _is_distributed(tensor) or tensor.numel() == 0 or tensor.device.type == "meta":
        return id(tensor)
    return (tensor.data_ptr(), tensor.device, tensor.dtype, tensor.shape, tensor.stride())


def _unit_of(name: str, tensor: torch.Tensor, rank: int) -> Unit:
    check_has_values(name, tensor)
    if _is_distributed(tensor):
        return DistributedTensor(tensor, rank)
    return PlainTensor(tensor, tensor.dtype, rank)
