"""PyTorch's first FSDP: the flat parameters of its units, gathered to rank 0 alone.

Its own full state dict has every rank gather every unit, and rank 0 keep all of them. Here a rank sends its
shard, which a flat parameter holds in full precision at any time, and rank 0 holds one unit.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import nn

from fastsft.checkpoint.external.entries import (
    Entry,
    NotStreamable,
    PlainTensor,
    check_has_values,
    clean_modules,
    clean_name,
)
from fastsft.checkpoint.external.gather import gather_parts
from fastsft.runtime.launch import Launch

if TYPE_CHECKING:
    from torch.distributed.fsdp._flat_param import FlatParamHandle

_Flat = dict[str, tuple["FlatUnit", int]]  # of one module: parameter -> its unit and position there


class FlatUnit:
    """The parameters of one wrapped module. `handle`: its FlatParamHandle."""

    def __init__(self, handle: FlatParamHandle, rank: int) -> None:
        import torch.distributed as dist

        self._handle, self._rank = handle, rank
        self._ranks = dist.get_process_group_ranks(handle.process_group)
        self._whole: torch.Tensor | None = None
        if any(extension is not None for extension in handle.flat_param._param_extensions):
            raise NotStreamable("it combines FSDP with tensor parallelism")

    @property
    def is_sharded(self) -> bool:
        return bool(self._handle.uses_sharded_strategy) and len(self._ranks) > 1

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        return [tuple(shape) for shape in self._handle.flat_param._shapes]

    @property
    def dtype(self) -> torch.dtype:
        return self._shard().dtype

    def prepare(self) -> None:
        """Memory for the unit on rank 0; a parameter that was given other storage is written back."""
        if self._handle._use_orig_params and hasattr(self._handle.flat_param, "_local_shard"):
            self._handle._writeback_orig_params()
        shard = self._shard()
        check_has_values(self._handle.flat_param._fqns[0], shard)
        if self.is_sharded and self._rank == 0:
            self._whole = shard.new_empty(shard.numel() * len(self._ranks), device=self._handle.device)

    def gather(self) -> list[torch.Tensor]:
        whole = self._gather_shards() if self.is_sharded else self._shard()
        self._whole = None
        return list(self._split(whole.cpu())) if whole is not None and self._rank == 0 else []

    def _shard(self) -> torch.Tensor:
        flat = self._handle.flat_param
        # Before the first step the parameter itself; afterwards it may be whole or in lower precision.
        shard: torch.Tensor = getattr(flat, "_local_shard", flat)
        return shard.detach()

    def _gather_shards(self) -> torch.Tensor | None:
        if 0 not in self._ranks:  # of hybrid sharding: another copy of the model
            return None
        shard = self._shard().to(self._handle.device)
        parts = list(self._whole.chunk(len(self._ranks))) if self._whole is not None else []
        gather_parts(shard, parts, self._handle.process_group)
        return self._whole

    def _split(self, whole: torch.Tensor) -> Iterator[torch.Tensor]:
        flat = self._handle.flat_param
        sizes = list(flat._numels_with_padding)
        layouts = iter(zip(flat._shapes, flat._strides, flat._contiguities, strict=True))
        parts = torch.split(whole[: sum(sizes)], sizes)
        for part, is_padding in zip(parts, flat._is_padding_mask, strict=True):
            if is_padding:
                continue
            shape, strides, contiguous = next(layouts)
            yield part.view(shape) if contiguous else part.as_strided(shape, strides)


def flat_state_entries(model: nn.Module, inner: nn.Module, place: Launch) -> list[Entry]:
    """`state_entries` of a model with FSDP1 modules; `inner` is what the outermost wraps."""
    flat = _flat_parameters(model, place.rank)
    buffer_dtypes = _buffer_dtypes(model)
    plain: dict[int, PlainTensor] = {}
    entries = []

    def add(name: str, tensor: torch.Tensor) -> None:
        check_has_values(name, tensor)
        dtype = buffer_dtypes.get(name, tensor.dtype)
        unit = plain.setdefault(id(tensor), PlainTensor(tensor, dtype, place.rank))
        is_parameter = isinstance(tensor, nn.Parameter)
        entries.append(Entry(name, unit, 0, tuple(tensor.shape), dtype, is_parameter))

    for prefix, module in clean_modules(inner):
        _check_is_ordinary(prefix, module)
        owned = flat.get(id(module), {})
        for name, parameter in _parameters_left_alone(module, owned):
            add(prefix + name, parameter)
        for name, (unit, position) in owned.items():
            shape = unit.shapes[position]
            entries.append(Entry(prefix + name, unit, position, shape, unit.dtype, True))
        for name, buffer in module._buffers.items():
            if buffer is not None and name not in module._non_persistent_buffers_set:
                add(prefix + name, buffer)
    return entries


def _flat_parameters(model: nn.Module, rank: int) -> dict[int, _Flat]:
    """By the identity of the module."""
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

    found: dict[int, _Flat] = {}
    for wrapper in FSDP.fsdp_modules(model):
        handle: FlatParamHandle | None = wrapper._handle
        if handle is None:
            continue
        unit = FlatUnit(handle, rank)
        places = {}
        for position, (name, module, _) in enumerate(handle.flat_param._param_infos):
            places[id(module), name] = position
            found.setdefault(id(module), {})[name] = (unit, position)
        for shared in handle.flat_param._shared_param_infos:
            position = places[id(shared.prim_module), shared.prim_param_name]
            found.setdefault(id(shared.module), {})[shared.param_name] = (unit, position)
    return found


def _parameters_left_alone(module: nn.Module, owned: _Flat) -> Iterator[tuple[str, nn.Parameter]]:
    from torch.distributed.fsdp import FlatParameter

    for name, parameter in module._parameters.items():
        if parameter is not None and name not in owned and not isinstance(parameter, FlatParameter):
            yield name, parameter


def _buffer_dtypes(model: nn.Module) -> dict[str, torch.dtype]:
    """The types that buffers had before mixed precision changed them, which is how FSDP saves them."""
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

    found: dict[str, torch.dtype] = {}
    for prefix, module in clean_modules(model):
        if isinstance(module, FSDP) and module.mixed_precision.buffer_dtype is not None:
            known = getattr(module, "_buffer_name_to_orig_dtype", {})
            found.update({clean_name(prefix + name): dtype for name, dtype in known.items()})
    return found


def _check_is_ordinary(prefix: str, module: nn.Module) -> None:
    """NotStreamable when a module adds to the state dict, or changes it, in code of its own."""
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import ActivationWrapper
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

    if isinstance(module, (FSDP, ActivationWrapper)):
        return
    kind = type(module)
    changed = [
        name
        for name in ("_save_to_state_dict", "get_extra_state", "state_dict")
        if getattr(kind, name) is not getattr(nn.Module, name)
    ]
    if changed or module._state_dict_hooks or module._state_dict_pre_hooks:
        name = prefix.rstrip(".") or "the model"
        raise NotStreamable(
            f"{name} ({kind.__name__}) has its own {', '.join(changed) or 'state dict hooks'}"
        )
