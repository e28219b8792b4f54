"""DTensors, as FSDP2 keeps every parameter: made whole on rank 0 alone."""

from __future__ import annotations

from typing import cast

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Replicate, Shard

from fastsft.checkpoint.external.gather import gather_parts


class DistributedTensor:
    """A DTensor; its unit is itself.

    Rows over one dimension of the mesh, which is what FSDP2 makes, are sent to rank 0; any other placement is
    made whole by torch, on every rank for a moment.
    """

    is_sharded = True

    def __init__(self, tensor: DTensor, rank: int) -> None:
        self._tensor, self._rank = tensor, rank
        self._mesh_dim = _dimension_of_rows(tensor)
        self._whole: torch.Tensor | None = None

    def prepare(self) -> None:
        """Memory for the whole on rank 0."""
        if self._mesh_dim is not None and self._rank == 0:
            device = self._local().device
            self._whole = torch.empty(self._tensor.shape, dtype=self._tensor.dtype, device=device)

    def gather(self) -> list[torch.Tensor]:
        whole = self._made_by_torch() if self._mesh_dim is None else self._gather_rows(self._mesh_dim)
        self._whole = None
        return [whole.cpu()] if whole is not None and self._rank == 0 else []

    def _local(self) -> torch.Tensor:
        detached = cast(DTensor, self._tensor.detach())  # of the same class
        local = detached.to_local()
        return local.to(_device_of(self._tensor)).contiguous()

    def _gather_rows(self, mesh_dim: int) -> torch.Tensor | None:
        group = self._tensor.device_mesh.get_group(mesh_dim)
        if 0 not in dist.get_process_group_ranks(group):  # another copy of the model
            return None
        count = dist.get_world_size(group)
        gather_parts(self._local(), row_parts(self._whole, count) if self._whole is not None else [], group)
        return self._whole

    def _made_by_torch(self) -> torch.Tensor:
        moved = self._tensor.detach().to(_device_of(self._tensor))
        return cast(DTensor, moved).full_tensor()  # of the same class


def row_parts(whole: torch.Tensor, count: int) -> list[torch.Tensor]:
    """The rows of each of `count` ranks, as Shard(0) cuts them; empty ones at the end."""
    parts = list(whole.chunk(count))
    return parts + [whole[:0]] * (count - len(parts))


def _dimension_of_rows(tensor: DTensor) -> int | None:
    """The dimension of the mesh that shards the rows, where all others hold copies."""
    sharded = [number for number, kind in enumerate(tensor.placements) if type(kind) is not Replicate]
    if len(sharded) != 1 or tensor.dim() == 0:
        return None
    kind = tensor.placements[sharded[0]]
    return sharded[0] if type(kind) is Shard and kind.dim == 0 else None


def _device_of(tensor: DTensor) -> torch.device:
    """The device on which the mesh communicates: offloaded tensors are elsewhere."""
    kind: str = tensor.device_mesh.device_type
    return tensor.device if tensor.device.type == kind else torch.device(kind)
