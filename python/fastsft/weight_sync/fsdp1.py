"""PyTorch's first FSDP: units gathered one after another, each parameter once."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import torch
from torch import nn

from fastsft.weight_sync.interfaces import Engine
from fastsft.weight_sync.modules import (
    check_is_tensor,
    check_no_adapters,
    clean_name,
    declared_ties,
    full_tensor,
    is_wrapper,
    unwrapped,
)
from fastsft.weight_sync.source import Described, Named, Rows, WeightSource, rows_of_whole


class Fsdp1Source(WeightSource):
    """A module in which `FullyShardedDataParallel` wraps all or parts.

    A unit is what one wrapper gathers, without the wrappers nested in it: their flat parameters are still
    sharded then, and would go out a second time. What no wrapper holds comes first.
    """

    lends_memory = True

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._module = engine.module
        self._inner = unwrapped(engine.module)
        self.config = getattr(self._inner, "config", None)
        self._buffer_dtypes = _buffer_dtypes(self._module)

    def describe(self) -> list[Described]:
        check_no_adapters(self._module)
        found = []
        for unit, tensors in enumerate(self.whole()):
            kept = [tensor for _, tensor in tensors]  # ids are unique among living tensors only
            for name, tensor in tensors:
                parameter = isinstance(tensor, nn.Parameter)
                identity = id(tensor) + (unit << 64)
                found.append(Described(name, tuple(tensor.shape), tensor.dtype, not parameter, identity))
            del kept
        return found

    def whole(self) -> Iterator[list[Named]]:
        yield list(self._tensors("", self._module))
        for name, module in self._module.named_modules():
            if is_wrapper(module):
                prefix = clean_name(name)
                with type(module).summon_full_params(module, recurse=False, writeback=False):
                    yield list(self._tensors(f"{prefix}." if prefix else "", module._fsdp_wrapped_module))

    def rows(self) -> Iterator[Rows]:
        for unit in self.whole():
            for name, tensor in unit:
                is_buffer = not isinstance(tensor, nn.Parameter)
                yield rows_of_whole(name, tensor.detach(), is_buffer, self.rank, self.world_size)

    def refresh(self) -> None:
        """Nothing: flat parameters keep names, shapes and dtypes, and to describe them gathers all."""

    def declared_ties(self) -> dict[str, str]:
        return declared_ties(self._inner)

    def _tensors(self, prefix: str, module: nn.Module) -> Iterator[Named]:
        """Of the module and what is below it, down to the next wrappers."""
        if is_wrapper(module):
            return
        if type(module).get_extra_state is not nn.Module.get_extra_state:
            check_is_tensor(f"{prefix}_extra_state", module.get_extra_state())
        for name, parameter in module._parameters.items():
            if parameter is not None and not _is_flat(parameter):
                check_is_tensor(prefix + name, parameter)
                yield prefix + name, full_parameter(parameter)
        for name, buffer in module._buffers.items():
            if buffer is not None and name not in module._non_persistent_buffers_set:
                yield prefix + name, buffer.to(self._buffer_dtypes.get(prefix + name, buffer.dtype))
        for name, child in module._modules.items():
            if child is not None:
                inner = clean_name(name)
                yield from self._tensors(f"{prefix}{inner}." if inner else prefix, child)


def _is_flat(parameter: nn.Parameter) -> bool:
    return isinstance(parameter, sys.modules["torch.distributed.fsdp"].FlatParameter)


def full_parameter(parameter: torch.Tensor) -> torch.Tensor:
    """The parameter itself, so that it keeps its identity, unless it has to be gathered."""
    return parameter if type(parameter) is nn.Parameter else nn.Parameter(full_tensor(parameter))


def _buffer_dtypes(model: nn.Module) -> dict[str, torch.dtype]:
    """The types that buffers had before mixed precision changed them, in which FSDP saves them."""
    found: dict[str, torch.dtype] = {}
    for name, module in model.named_modules():
        if is_wrapper(module):
            prefix = clean_name(name)
            known = getattr(module, "_buffer_name_to_orig_dtype", None) or {}
            for buffer, dtype in known.items():
                found[clean_name(f"{prefix}.{buffer}" if prefix else buffer)] = dtype
    return found
