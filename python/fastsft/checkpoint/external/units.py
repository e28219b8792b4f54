"""Entries of a state dict, name by name, and the units whose tensors become whole together on rank 0."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, cast

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Replicate, Shard

from fastsft.checkpoint.external.wrapped import full_tensor, on_mesh

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class NotStreamable(Exception):
    """A model has to be saved by the code that made it, for the reason in the message."""


class Unit(Protocol):
    """Tensors that become whole together."""

    @property
    def is_sharded(self) -> bool:
        """True if `gather` is collective."""

    def prepare(self) -> None:
        """Do all that can fail on this rank alone, before the others wait for it."""

    def gather(self) -> list[torch.Tensor]:
        """Return the whole tensors on the CPU of rank 0; nothing elsewhere."""


@dataclass(frozen=True)
class Entry:
    """A name of the state dict. Entries with the same unit and position are one tensor (tied weights)."""

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


def check_has_values(name: str, tensor: torch.Tensor) -> None:
    """ValueError when a tensor is on the meta device; NotStreamable when it is no plain array of numbers."""
    if tensor.device.type == "meta":
        raise ValueError(f"{name}: expected weights to save, got a tensor on the meta device, without values")
    if tensor.layout is not torch.strided or tensor.is_quantized:
        raise NotStreamable(f"{name} is no plain tensor ({tensor.layout})")


def gather_parts(part: torch.Tensor, parts: list[torch.Tensor], group: ProcessGroup) -> None:
    """Send this rank's contiguous `part` to rank 0, or on rank 0 receive the parts of `group`. Collective.

    parts: destinations on rank 0, contiguous, in the order of the group's ranks. Rank 0 of all ranks must be
    in the group. Empty parts do not travel.
    """
    ranks = dist.get_process_group_ranks(group)
    # Not dist.gather: gloo's needs the whole a second time.
    if dist.get_rank() != 0:
        moves = [dist.P2POp(dist.isend, part, 0, group)] if part.numel() else []
    else:
        parts[ranks.index(0)].copy_(part)
        others = [(to, peer) for to, peer in zip(parts, ranks, strict=True) if peer != 0 and to.numel()]
        moves = [dist.P2POp(dist.irecv, to, peer, group) for to, peer in others]
    for work in dist.batch_isend_irecv(moves) if moves else ():
        work.wait()


class DistributedTensor:
    """A DTensor, which is a unit of its own.

    Rows over one dimension of the mesh (FSDP2's layout) are sent to rank 0; torch makes any other placement
    whole, on every rank for a moment.
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
        detached = cast(DTensor, self._tensor.detach())  # of the same class
        return on_mesh(detached.to_local(), self._tensor.device_mesh.device_type).contiguous()

    def _gather_rows(self, mesh_dim: int) -> torch.Tensor | None:
        group = self._tensor.device_mesh.get_group(mesh_dim)
        if 0 not in dist.get_process_group_ranks(group):  # another copy of the model
            return None
        count = dist.get_world_size(group)
        gather_parts(self._local(), row_parts(self._whole, count) if self._whole is not None else [], group)
        return self._whole


def row_parts(whole: torch.Tensor, count: int) -> list[torch.Tensor]:
    """Return the rows of each of `count` ranks, as Shard(0) cuts them; empty ones at the end."""
    parts = list(whole.chunk(count))
    return parts + [whole[:0]] * (count - len(parts))


def _dimension_of_rows(tensor: DTensor) -> int | None:
    """Return the mesh dimension that shards the rows if all others replicate; else None."""
    sharded = [number for number, kind in enumerate(tensor.placements) if type(kind) is not Replicate]
    if len(sharded) != 1 or tensor.dim() == 0:
        return None
    kind = tensor.placements[sharded[0]]
    return sharded[0] if type(kind) is Shard and kind.dim == 0 else None
