"""DTensors become whole: those that are cut into rows over one mesh many at a time.

An all-gather a tensor costs more than the bytes of most tensors do.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any, cast

import torch

from fastsft.weight_sync.sources.source import Named

# Of whole tensors; what passes it is the last one of its batch. Small: a processor's cache holds it, and
# malloc hands the same memory out again instead of new pages.
BATCH_BYTES = 1 << 22
DIRECT_BYTES = 1 << 18  # a tensor this large, whose rows divide evenly, is gathered where it will be


class Batch:
    """Tensors in their order that become whole together: DTensors of one mesh, cut into rows, and plain ones.

    Every rank makes the same batches: they follow from shapes, dtypes and placements alone.
    """

    def __init__(self) -> None:
        self.bytes = 0
        self._mesh: Any = None
        self._named: list[tuple[str, torch.Tensor | None]] = []  # None: of `_rows`
        self._rows: list[torch.Tensor] = []
        self._shapes: list[torch.Size] = []

    def takes(self, mesh: Any) -> bool:
        """True if a tensor of `mesh` (None: a plain one) may join those that are here."""
        return self.bytes < BATCH_BYTES and (mesh is None or self._mesh is None or mesh is self._mesh)

    def add(self, name: str, tensor: Any, mesh: Any) -> None:
        self.bytes += tensor.shape.numel() * tensor.dtype.itemsize
        if mesh is None:
            self._named.append((name, tensor.detach() if tensor.requires_grad else tensor))
            return
        self._mesh = mesh
        self._named.append((name, None))
        self._rows.append(tensor._local_tensor)
        self._shapes.append(tensor.shape)

    def whole(self) -> list[Named]:
        """All of them; collective over the mesh, if there is one."""
        joined = iter(self._gather() if self._rows else ())
        return [(name, next(joined) if tensor is None else tensor) for name, tensor in self._named]

    def _gather(self) -> list[torch.Tensor]:
        import torch.distributed as dist

        from fastsft import _C

        rank, size = self._mesh.get_local_rank(), self._mesh.size()
        rows = [_on_mesh(tensor, self._mesh) for tensor in self._rows]
        packed = _C.pack_rows(rows, self._shapes, rank, size)
        gathered = torch.empty(size * packed.numel(), dtype=torch.uint8, device=packed.device)
        dist.all_gather_into_tensor(gathered, packed, group=self._mesh.get_group())
        return _C.join_rows(gathered, rows, self._shapes, size)


def whole_tensors(tensors: Iterable[Named]) -> Iterator[list[Named]]:
    """In their order, a list for each gather; collective where there are DTensors."""
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


def _is_direct(tensor: Any, mesh: Any) -> bool:
    shape: torch.Size = tensor.shape
    large = shape.numel() * tensor.dtype.itemsize >= DIRECT_BYTES
    return large and shape[0] % int(mesh.size()) == 0


def _gather_rows(tensor: Any) -> torch.Tensor:
    import torch.distributed as dist

    mesh = tensor._spec.mesh
    rows = _on_mesh(tensor._local_tensor, mesh).contiguous()
    whole = torch.empty(tensor.shape, dtype=tensor.dtype, device=rows.device)
    dist.all_gather_into_tensor(_bytes(whole), _bytes(rows), group=mesh.get_group())
    return whole


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """gloo does not know every dtype."""
    return tensor.view(-1).view(torch.uint8)


def _on_mesh(tensor: torch.Tensor, mesh: Any) -> torch.Tensor:
    """Offloaded tensors go back to the device that their group communicates on."""
    device: str = mesh.device_type
    return tensor if tensor.device.type == device else tensor.to(device)


def row_mesh(tensor: Any) -> Any:
    """The mesh over whose one dimension a DTensor is cut into rows; None for any other layout."""
    from torch.distributed.tensor import Shard

    spec = tensor._spec
    return spec.mesh if tuple(spec.placements) == (Shard(0),) else None


def is_dtensor(tensor: Any) -> bool:
    """Without importing torch.distributed.tensor, which nobody needed if it is not there."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and bool(isinstance(tensor, module.DTensor))


def full_tensor(tensor: Any) -> torch.Tensor:
    """The whole values; collective for a DTensor."""
    tensor = tensor.detach()
    if not is_dtensor(tensor):
        return cast(torch.Tensor, tensor)
    mesh_device = tensor.device_mesh.device_type
    if tensor.device.type != mesh_device:  # offloaded, while its group communicates on the device
        tensor = tensor.to(mesh_device)
    whole: torch.Tensor = tensor.full_tensor()
    return whole
