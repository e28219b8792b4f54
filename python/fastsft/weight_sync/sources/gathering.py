"""DTensors become whole: those that are cut into rows over one mesh many at a time.

An all-gather a tensor costs more than the bytes of most tensors do.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any, cast

import torch

from fastsft.weight_sync.sources.source import Named

GROUP_BYTES = 1 << 25  # of whole tensors; one that is larger is a group of its own


class RowGroup:
    """DTensors of one mesh that are gathered together, and the plain tensors between them.

    Every rank makes the same groups: they follow from shapes, dtypes and placements alone.
    """

    def __init__(self, mesh: Any) -> None:
        self.mesh, self.bytes = mesh, 0
        self._named: list[tuple[str, torch.Tensor | None]] = []  # None: of `_rows`
        self._rows: list[torch.Tensor] = []
        self._shapes: list[torch.Size] = []

    def add(self, name: str, tensor: Any) -> None:
        """A tensor of the mesh."""
        self._named.append((name, None))
        self._rows.append(tensor._local_tensor)
        self._shapes.append(tensor.shape)
        self.bytes += tensor.shape.numel() * tensor.dtype.itemsize

    def add_plain(self, name: str, tensor: torch.Tensor) -> None:
        """A tensor that is whole already."""
        self._named.append((name, tensor))

    def gather(self) -> list[Named]:
        """All of them, whole; collective over the mesh."""
        import torch.distributed as dist

        from fastsft import _C

        rank, size = self.mesh.get_local_rank(), self.mesh.size()
        rows = [self._on_mesh(tensor) for tensor in self._rows]
        packed = _C.pack_rows(rows, self._shapes, rank, size)
        gathered = torch.empty(size * packed.numel(), dtype=torch.uint8, device=packed.device)
        dist.all_gather_into_tensor(gathered, packed, group=self.mesh.get_group())
        joined = iter(_C.join_rows(gathered, rows, self._shapes, size))
        return [(name, next(joined) if tensor is None else tensor) for name, tensor in self._named]

    def _on_mesh(self, tensor: torch.Tensor) -> torch.Tensor:
        """Offloaded tensors go back to the device that their group communicates on."""
        device: str = self.mesh.device_type
        return tensor if tensor.device.type == device else tensor.to(device)


def whole_tensors(tensors: Iterable[Named]) -> Iterator[list[Named]]:
    """In their order, a list for each gather; collective where there are DTensors."""
    group: RowGroup | None = None
    for name, tensor in tensors:
        mesh = row_mesh(tensor)
        if group is not None and mesh is None and not is_dtensor(tensor):
            group.add_plain(name, tensor.detach())
            continue
        if group is not None and (mesh is not group.mesh or group.bytes >= GROUP_BYTES):
            yield group.gather()
            group = None
        if mesh is None:
            yield [(name, full_tensor(tensor))]
            continue
        group = group or RowGroup(mesh)
        group.add(name, tensor)
    if group is not None:
        yield group.gather()


def row_mesh(tensor: Any) -> Any:
    """The mesh over which a DTensor is cut into rows, if it has one dimension; else None."""
    if not is_dtensor(tensor):
        return None
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
