"""`model_world_size_<W>_rank_<r>.pt`: DTensors for veRL's merger (docs/spec/weight_sync.md, section 2.3).

Every tensor is a DTensor on a mesh ("fsdp",) of W ranks: parameters cut into rows, unpadded, empty where a
rank has none; buffers and scalars replicated. A plain tensor would be taken from rank 0 only, or repeated.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastsft.weight_sync.formats import WrittenFile, register, temporary_name, written_file
from fastsft.weight_sync.formats.dtensor_shards import Part, read_shard

if TYPE_CHECKING:
    import torch

    from fastsft.weight_sync.sources.source import Rows
    from fastsft.weight_sync.staging import Snapshot

_SHARD = re.compile(r"model_world_size_(\d+)_rank_(\d+)\.pt")


@register
class VerlPt:
    """Needs `fsdp_config.json` and `huggingface/` next to it, which every save writes."""

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
        shards = _shards_of_one_save(directory, names)
        loaded = [read_shard(directory / name) for name in shards]
        for name, shard in zip(shards, loaded, strict=True):
            if shard.keys() != loaded[0].keys():
                other = min(shard.keys() ^ loaded[0].keys())
                raise ValueError(f"{directory / name}: {other} is not in all files of this save")
        return {name: _join([shard[name] for shard in loaded]) for name in loaded[0]}


def _shards_of_one_save(directory: Path, names: list[str]) -> list[str]:
    """The files in order of rank; ValueError unless they are those of all ranks of one save."""
    found = {(int(m[1]), int(m[2])): name for name in names if (m := _SHARD.fullmatch(name))}
    worlds = sorted({world for world, _ in found})
    if len(worlds) > 1:
        raise ValueError(
            f"{directory}: its manifest lists shards of {worlds} ranks; expected those of one save"
        )
    missing = [rank for rank in range(worlds[0]) if (worlds[0], rank) not in found]
    if missing or len(found) != worlds[0]:
        raise ValueError(f"{directory}: expected shards of {worlds[0]} ranks, got {len(found)}")
    return [found[key] for key in sorted(found)]


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


def _join(parts: list[Part]) -> torch.Tensor:
    import torch

    dim = parts[0].dim
    return parts[0].rows.clone() if dim is None else torch.cat([part.rows for part in parts], dim=dim)
