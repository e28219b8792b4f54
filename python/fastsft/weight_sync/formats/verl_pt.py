"""`model_world_size_<W>_rank_<r>.pt`: DTensors that veRL's merger reads (weight_sync.md, section 2.3).

Every tensor is a DTensor on a mesh ("fsdp",) of W ranks: parameters cut into rows, unpadded, empty where a
rank has none; buffers and scalars replicated. A plain tensor would be taken from rank 0 only, or repeated.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastsft.weight_sync.formats import WrittenFile, register, temporary_name, written_file

if TYPE_CHECKING:
    import torch

    from fastsft.weight_sync.sources.source import Rows
    from fastsft.weight_sync.staging import Snapshot

_SHARD = re.compile(r"model_world_size_(\d+)_rank_(\d+)\.pt")


@register
class VerlPt:
    """Needs `fsdp_config.json` and `huggingface/` beside it, which every save writes."""

    name = "verl_pt"

    def write(self, directory: Path, tag: str, snapshot: Snapshot) -> list[WrittenFile]:
        from fastsft import _C

        name = f"model_world_size_{snapshot.world_size}_rank_{snapshot.rank}.pt"
        mesh = _mesh(snapshot.rank, snapshot.world_size)
        state = {
            tensor_name: _dtensor(snapshot.parts[number], shape, mesh)
            for number, (tensor_name, _, shape) in enumerate(snapshot.plan.tensors)
        }
        temporary = directory / temporary_name(name, tag)
        _save(state, temporary)
        _C.sync_file(str(temporary))
        return [written_file(directory, name, tag)]

    def recognises(self, names: list[str]) -> bool:
        return any(_SHARD.fullmatch(name) for name in names)

    def read(self, directory: Path, names: list[str]) -> dict[str, torch.Tensor]:
        import torch

        shards = sorted((int(m[2]), name) for name in names if (m := _SHARD.fullmatch(name)))
        with torch.serialization.safe_globals(_dtensor_classes()):
            loaded = [torch.load(directory / name, weights_only=True, mmap=True) for _, name in shards]
        return {name: _join([shard[name] for shard in loaded]) for name in loaded[0]}


class _Writer:
    """A file whose first error is kept: torch.save says "unexpected pos" where a disk is full."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        left = memoryview(data).cast("B")
        total = len(left)
        try:
            while len(left):
                left = left[self._file.write(left) :]
        except OSError as error:
            self.error = self.error or error
            raise
        return total

    def flush(self) -> None:
        self._file.flush()


def _save(state: dict[str, Any], path: Path) -> None:
    """torch.save. OSError names the path where it cannot be written."""
    import torch

    with open(path, "wb", buffering=0) as file:
        writer = _Writer(file)
        try:
            torch.save(state, writer)  # type: ignore[arg-type]
        except (OSError, RuntimeError) as error:
            reason = writer.error
            if reason is None:
                raise
            raise OSError(reason.errno, f"cannot write: {reason.strerror}", str(path)) from error


def _mesh(rank: int, world_size: int) -> Any:
    import torch
    from torch.distributed.device_mesh import DeviceMesh

    # Without a backend: nothing communicates, and the reader needs no process group either.
    return DeviceMesh(
        "cpu", torch.arange(world_size), mesh_dim_names=("fsdp",), _init_backend=False, _rank=rank
    )


def _dtensor(part: Rows, shape: list[int], mesh: Any) -> Any:
    import torch
    from torch.distributed.tensor import DTensor, Replicate, Shard
    from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta

    stride = torch.empty(shape, device="meta").stride()
    meta = TensorMeta(torch.Size(shape), stride, part.tensor.dtype)
    placement = Shard(0) if part.is_sharded else Replicate()
    spec = DTensorSpec(mesh, (placement,), tensor_meta=meta)
    return DTensor(part.tensor, spec, requires_grad=False)  # type: ignore[no-untyped-call]


def _dtensor_classes() -> list[Any]:
    from torch.distributed._mesh_layout import _MeshLayout
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Replicate, Shard
    from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta

    mesh = (_InertMesh, f"{DeviceMesh.__module__}.{DeviceMesh.__qualname__}")
    return [DTensor, DTensorSpec, TensorMeta, mesh, Shard, Replicate, _MeshLayout]


class _InertMesh:
    """Where a file names a DeviceMesh: calling that class would make a process group."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass


def _join(parts: list[Any]) -> torch.Tensor:
    import torch

    (placement,) = parts[0].placements
    locals_ = [part._local_tensor for part in parts]
    return locals_[0].clone() if placement.is_replicate() else torch.cat(locals_, dim=placement.dim)
