"""Gathers DTensors on every rank, many in one all-gather, and gives access to a rank's own rows.

DTensors whose rows are sharded over the same mesh are gathered together. Most tensors are so small that
separate all-gathers would take longer than their transfer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, cast

import torch

from fastsft import _C
from fastsft.checkpoint.external.wrapped import full_tensor, is_dtensor, on_mesh
from fastsft.weight_sync.source import Named, chunk_of

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor

# A batch ends with the tensor that exceeds this size. The size fits in a processor's cache, and is so small
# that malloc reuses memory instead of mapping new pages.
BATCH_BYTES = 1 << 22
DIRECT_BYTES = 1 << 18  # tensors from this size on whose rows divide evenly are gathered in place


class Batch:
    """Consecutive tensors that are gathered together.

    They are plain tensors, and DTensors whose rows are sharded over the same mesh. Batches depend only on
    shapes, dtypes and placements, so that all ranks make the same batches.
    """

    def __init__(self) -> None:
        self.bytes = 0
        self._mesh: DeviceMesh | None = None
        self._named: list[tuple[str, torch.Tensor | None]] = []  # None stands for the next tensor in `_rows`
        self._rows: list[torch.Tensor] = []
        self._shapes: list[torch.Size] = []

    def takes(self, mesh: DeviceMesh | None) -> bool:
        """Return True if a tensor may join the batch.

        mesh: the tensor's mesh; None for a plain tensor.
        """
        return self.bytes < BATCH_BYTES and (mesh is None or self._mesh is None or mesh is self._mesh)

    def add(self, name: str, tensor: torch.Tensor, mesh: DeviceMesh | None) -> None:
        self.bytes += tensor.shape.numel() * tensor.dtype.itemsize
        if mesh is None:
            self._named.append((name, tensor.detach() if tensor.requires_grad else tensor))
            return
        self._mesh = mesh
        self._named.append((name, None))
        self._rows.append(cast("DTensor", tensor)._local_tensor)
        self._shapes.append(tensor.shape)

    def whole(self) -> list[Named]:
        """Return the whole tensors. Collective over the mesh, if the batch has DTensors."""
        joined = iter(self._gather() if self._rows else ())
        return [(name, next(joined) if tensor is None else tensor) for name, tensor in self._named]

    def _gather(self) -> list[torch.Tensor]:
        import torch.distributed as dist

        mesh = self._mesh
        assert mesh is not None
        rank, size = mesh.get_local_rank(), mesh.size()
        rows = [on_mesh(tensor, mesh.device_type) for tensor in self._rows]
        packed = _C.pack_rows(rows, self._shapes, rank, size)
        gathered = torch.empty(size * packed.numel(), dtype=torch.uint8, device=packed.device)
        dist.all_gather_into_tensor(gathered, packed, group=mesh.get_group())
        return _C.join_rows(gathered, rows, self._shapes, size)


def whole_tensors(tensors: Iterable[Named]) -> Iterator[list[Named]]:
    """Yield the whole tensors in order, in a list for each all-gather. Collective if there are DTensors."""
    batch = Batch()
    for name, tensor in tensors:
        mesh, gather = None, None
        if is_dtensor(tensor):
            mesh = row_mesh(tensor)
            gather = full_tensor if mesh is None else _gather_rows if _is_direct(tensor, mesh) else None
        if gather is not None or not batch.takes(mesh):
            yield batch.whole()
            batch = Batch()
        if gather is not None:
            yield [(name, gather(tensor))]
        else:
            batch.add(name, tensor, mesh)
    yield batch.whole()


def _is_direct(tensor: torch.Tensor, mesh: DeviceMesh) -> bool:
    shape: torch.Size = tensor.shape
    large = shape.numel() * tensor.dtype.itemsize >= DIRECT_BYTES
    return large and shape[0] % int(mesh.size()) == 0


def _gather_rows(tensor: torch.Tensor) -> torch.Tensor:
    import torch.distributed as dist

    sharded = cast("DTensor", tensor)
    mesh = sharded._spec.mesh
    rows = on_mesh(sharded._local_tensor, mesh.device_type).contiguous()
    whole = torch.empty(tensor.shape, dtype=tensor.dtype, device=rows.device)
    dist.all_gather_into_tensor(_bytes(whole), _bytes(rows), group=mesh.get_group())
    return whole


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor's bytes as a view, because gloo does not support every dtype."""
    return tensor.view(-1).view(torch.uint8)


def row_mesh(tensor: DTensor) -> DeviceMesh | None:
    """Return the one-dimensional mesh over which a DTensor's rows are sharded; None for other layouts."""
    from torch.distributed.tensor import Shard

    spec = tensor._spec
    return spec.mesh if tuple(spec.placements) == (Shard(0),) else None


def is_cut_over_all(tensor: DTensor, world_size: int, meshes: dict[int, bool]) -> bool:
    """Return True if a DTensor's rows are sharded over all ranks in order.

    meshes: a cache, as in `own_rows`.
    """
    mesh = row_mesh(tensor)
    if mesh is None:
        return False
    if id(mesh) not in meshes:
        meshes[id(mesh)] = mesh.mesh.tolist() == list(range(world_size))
    return meshes[id(mesh)]


def own_rows(
    tensor: torch.Tensor, rank: int, world_size: int, meshes: dict[int, bool]
) -> torch.Tensor | None:
    """Return a DTensor's local rows, if its rows are sharded over all ranks; None for other tensors.

    meshes: a cache. It maps a mesh's id to True if the mesh consists of all ranks in order.
    """
    if not is_dtensor(tensor) or not is_cut_over_all(tensor, world_size, meshes):
        return None
    local: torch.Tensor = tensor._local_tensor
    begin, end = chunk_of(tensor.shape, rank, world_size)
    return local if local.shape[0] == end - begin else None
