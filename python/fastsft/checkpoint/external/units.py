"""Units, whose tensors rank 0 gathers together: plain tensors, DTensors and FSDP1's flat parameters.

For FSDP1's own full state dict, every rank gathers every unit, and rank 0 keeps all units. Here, other ranks
only send their shards, and rank 0 holds one unit at a time. Shards of flat parameters always have full
precision.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, Replicate, Shard

from fastsft.checkpoint.external.wrapped import clean_modules, fsdp1_buffer_dtypes, full_tensor, on_mesh
from fastsft.runtime.launch import Launch

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.fsdp._flat_param import FlatParamHandle


_Flat = dict[str, tuple["FlatUnit", int]]  # parameter name in a module -> (unit, position in the unit)


class NotStreamable(Exception):
    """The error for a model that cannot be streamed. The model's own library must save it."""


class Unit(Protocol):
    """A group of tensors that are gathered together."""

    @property
    def is_sharded(self) -> bool:
        """True if `gather` is collective."""

    def prepare(self) -> None:
        """Do all work that may fail on this rank alone. Called before the ranks meet in `gather`."""

    def gather(self) -> list[torch.Tensor]:
        """Return the whole tensors on the CPU on rank 0, and [] on other ranks."""


@dataclass(frozen=True)
class Entry:
    """A state dict entry. Entries with the same unit and position share a tensor (tied weights)."""

    name: str
    unit: Unit
    position: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    is_parameter: bool


class PlainTensor:
    """A unit with one tensor, which every rank holds whole."""

    is_sharded = False

    def __init__(self, tensor: torch.Tensor, dtype: torch.dtype, rank: int) -> None:
        self._tensor, self._dtype, self._rank = tensor, dtype, rank

    def prepare(self) -> None:
        pass

    def gather(self) -> list[torch.Tensor]:
        return [self._tensor.detach().to("cpu", self._dtype)] if self._rank == 0 else []


def check_has_values(name: str, tensor: torch.Tensor) -> None:
    """Raise ValueError for a tensor on the meta device, NotStreamable for a sparse or quantized tensor."""
    if tensor.device.type == "meta":
        raise ValueError(f"{name}: expected weights to save, got a tensor on the meta device, without values")
    if tensor.layout is not torch.strided or tensor.is_quantized:
        raise NotStreamable(f"{name} is no plain tensor ({tensor.layout})")


def gather_parts(part: torch.Tensor, parts: list[torch.Tensor], group: ProcessGroup) -> None:
    """Send this rank's contiguous `part` to rank 0, which receives all `parts`. Collective over `group`.

    parts: contiguous destination tensors on rank 0, in the order of the group's ranks. group: must contain
    global rank 0. Empty parts are not sent.
    """
    ranks = dist.get_process_group_ranks(group)
    # dist.gather is not used, because gloo's implementation needs memory for a second whole copy.
    if dist.get_rank() != 0:
        moves = [dist.P2POp(dist.isend, part, 0, group)] if part.numel() else []
    else:
        parts[ranks.index(0)].copy_(part)
        others = [(to, peer) for to, peer in zip(parts, ranks, strict=True) if peer != 0 and to.numel()]
        moves = [dist.P2POp(dist.irecv, to, peer, group) for to, peer in others]
    for work in dist.batch_isend_irecv(moves) if moves else ():
        work.wait()


class DistributedTensor:
    """A unit with one DTensor.

    If the rows are sharded over one mesh dimension (FSDP2's layout), the shards are sent to rank 0. Tensors
    with any other placement are gathered by torch, and every rank briefly needs memory for the whole tensor.
    """

    is_sharded = True

    def __init__(self, tensor: DTensor, rank: int) -> None:
        self._tensor, self._rank = tensor, rank
        self._mesh_dim = _dimension_of_rows(tensor)
        self._whole: torch.Tensor | None = None

    def prepare(self) -> None:
        """Allocate the whole tensor on rank 0."""
        if self._mesh_dim is not None and self._rank == 0:
            device = self._local().device
            self._whole = torch.empty(self._tensor.shape, dtype=self._tensor.dtype, device=device)

    def gather(self) -> list[torch.Tensor]:
        whole = full_tensor(self._tensor) if self._mesh_dim is None else self._gather_rows(self._mesh_dim)
        self._whole = None
        return [whole.cpu()] if whole is not None and self._rank == 0 else []

    def _local(self) -> torch.Tensor:
        detached = cast(DTensor, self._tensor.detach())  # for type checkers: detach keeps the class
        return on_mesh(detached.to_local(), self._tensor.device_mesh.device_type).contiguous()

    def _gather_rows(self, mesh_dim: int) -> torch.Tensor | None:
        group = self._tensor.device_mesh.get_group(mesh_dim)
        if 0 not in dist.get_process_group_ranks(group):  # this group holds another replica
            return None
        count = dist.get_world_size(group)
        gather_parts(self._local(), row_parts(self._whole, count) if self._whole is not None else [], group)
        return self._whole


def row_parts(whole: torch.Tensor, count: int) -> list[torch.Tensor]:
    """Return views of `whole` with each rank's rows, as Shard(0) divides them over `count` ranks.

    The last views may be empty.
    """
    parts = list(whole.chunk(count))
    return parts + [whole[:0]] * (count - len(parts))


def _dimension_of_rows(tensor: DTensor) -> int | None:
    """Return the mesh dimension that shards the rows, if all other mesh dimensions replicate; else None."""
    sharded = [number for number, kind in enumerate(tensor.placements) if type(kind) is not Replicate]
    if len(sharded) != 1 or tensor.dim() == 0:
        return None
    kind = tensor.placements[sharded[0]]
    return sharded[0] if type(kind) is Shard and kind.dim == 0 else None


class FlatUnit:
    """The parameters of one module that FSDP1 wraps. handle: the module's FlatParamHandle."""

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
        """Allocate the whole unit on rank 0.

        Before that, copy parameters whose storage was replaced back into the flat parameter.
        """
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
        # Before the first step, the flat parameter is the shard. Later it may be whole or in lower precision.
        shard: torch.Tensor = getattr(flat, "_local_shard", flat)
        return shard.detach()

    def _gather_shards(self) -> torch.Tensor | None:
        if 0 not in self._ranks:  # with hybrid sharding, this group holds another replica
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
    """Return the state dict entries of a model with FSDP1 modules. inner: `model` without outer wrappers."""
    flat = _flat_parameters(model, place.rank)
    buffer_dtypes = fsdp1_buffer_dtypes(model)
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
    """Return the parameters that flat parameters hold, by the id of their module."""
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

    parameters: dict[int, _Flat] = {}
    for wrapper in FSDP.fsdp_modules(model):
        handle: FlatParamHandle | None = wrapper._handle
        if handle is None:
            continue
        unit = FlatUnit(handle, rank)
        places = {}
        for position, (name, module, _) in enumerate(handle.flat_param._param_infos):
            places[id(module), name] = position
            parameters.setdefault(id(module), {})[name] = (unit, position)
        for shared in handle.flat_param._shared_param_infos:
            position = places[id(shared.prim_module), shared.prim_param_name]
            parameters.setdefault(id(shared.module), {})[shared.param_name] = (unit, position)
    return parameters


def _parameters_left_alone(module: nn.Module, owned: _Flat) -> Iterator[tuple[str, nn.Parameter]]:
    from torch.distributed.fsdp import FlatParameter

    for name, parameter in module._parameters.items():
        if parameter is not None and name not in owned and not isinstance(parameter, FlatParameter):
            yield name, parameter


def _check_is_ordinary(prefix: str, module: nn.Module) -> None:
    """Raise NotStreamable if a module has overridden methods or hooks that change its state dict."""
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
