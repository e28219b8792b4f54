"""Wrapped models: removes wrappers (DDP, FSDP, torch.compile) and gathers DTensors.

Libraries are looked up in sys.modules and never imported, since a library that is not imported cannot have
wrapped a model.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

import torch
from torch import nn

if TYPE_CHECKING:
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.tensor import DTensor
    from typing_extensions import TypeIs

_WRAPPERS = ("_fsdp_wrapped_module", "_orig_mod", "_checkpoint_wrapped_module")
_PARALLEL = (nn.parallel.DistributedDataParallel, nn.DataParallel)


@functools.cache
def clean_name(name: str) -> str:
    """Return a state dict name without the parts that wrappers insert."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def clean_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield (tensor name prefix, module) for every module. Shared modules are yielded under each name."""
    for name, module in model.named_modules(remove_duplicate=False):
        prefix = clean_name(name)
        yield (f"{prefix}." if prefix else ""), module


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the module inside DDP, DataParallel, FSDP1, torch.compile and activation checkpointing."""
    while True:
        inner = model.module if isinstance(model, _PARALLEL) else None
        for name in _WRAPPERS:
            inner = getattr(model, "_modules", {}).get(name, inner)
        if inner is None:
            return model
        model = inner


def is_fsdp1_wrapper(module: object) -> TypeIs[FullyShardedDataParallel]:
    """True if `module` is an FSDP1 wrapper (FullyShardedDataParallel)."""
    wrapper = getattr(sys.modules.get("torch.distributed.fsdp"), "FullyShardedDataParallel", None)
    return wrapper is not None and isinstance(module, wrapper)


def is_fsdp1(model: object) -> bool:
    """True if FSDP1 wraps the model, or a module in the model."""
    modules = getattr(model, "modules", None)
    return callable(modules) and any(map(is_fsdp1_wrapper, modules()))


def fsdp1_buffer_dtypes(model: nn.Module) -> dict[str, torch.dtype]:
    """Return the original dtypes of buffers that FSDP1's mixed precision has cast, by name.

    FSDP1 saves the buffers in these dtypes.
    """
    dtypes: dict[str, torch.dtype] = {}
    for prefix, module in clean_modules(model):
        if is_fsdp1_wrapper(module) and module.mixed_precision.buffer_dtype is not None:
            originals = getattr(module, "_buffer_name_to_orig_dtype", None) or {}
            dtypes.update({clean_name(prefix + name): dtype for name, dtype in originals.items()})
    return dtypes


def is_dtensor(tensor: object) -> TypeIs[DTensor]:
    """True if `tensor` is a DTensor."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def on_mesh(tensor: torch.Tensor, device_type: str) -> torch.Tensor:
    """Return `tensor` on the device type of its mesh, from which it may have been offloaded."""
    return tensor if tensor.device.type == device_type else tensor.to(device_type)


def full_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Return the whole tensor on every rank. Collective for a DTensor."""
    tensor = tensor.detach()
    if not is_dtensor(tensor):
        return tensor
    whole: torch.Tensor = cast("DTensor", on_mesh(tensor, tensor.device_mesh.device_type)).full_tensor()
    return whole
