"""`model_world_size_<W>_rank_<r>.pt`: DTensors for veRL's merger (docs/spec/weight_sync.md, section 2.3).

Every tensor is a DTensor on a mesh ("fsdp",) of W ranks. Parameters are sharded by rows, without padding, and
empty if a rank has no rows. Buffers and scalars are replicated. There are no plain tensors, because the
merger would use only rank 0's, or repeat it. Files are read as data (`runtime/torch_archive.py`), without
making a DTensor or a mesh.
"""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from fastsft import _C
from fastsft.ranks.exchange import Message
from fastsft.runtime.new_files import NewFile
from fastsft.runtime.plain_pickle import Inert, Maker, PlainPickleError, check_named
from fastsft.runtime.torch_archive import read_archive
from fastsft.weight_sync.files import Written, temporary_name, written_file

if TYPE_CHECKING:
    from fastsft.weight_sync.source import Rows
    from fastsft.weight_sync.tensor_stream import Snapshot


if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor
    from typing_extensions import Buffer


class _DTensor(Inert):
    """A substitute for the class DTensor."""


class _Shard(Inert):
    """A substitute for Shard.

    `dim`: the sharded dimension.
    """


class _Replicate(Inert):
    """A substitute for Replicate."""


class Part:
    """A rank's part of a tensor.

    rows: the part's values. dim: the sharded dimension; None if the tensor is replicated.
    """

    def __init__(self, rows: torch.Tensor, dim: int | None) -> None:
        self.rows, self.dim = rows, dim


def read_shard(path: Path) -> dict[str, Part]:
    """Return the parts in a file, by name.

    ValueError, with the path, unless the file holds a dictionary of DTensors.
    """
    if not path.exists():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    try:
        content = read_archive(path, _find)
    except ValueError as error:
        raise ValueError(f"{path}: not a file of shards: {error}") from error
    check_named(path, content, Part, "a DTensor")
    parts: dict[str, Part] = content
    return parts


def _find(name: str) -> object:
    """Return the substitute for a class in torch.distributed.

    The class's module depends on torch's version.
    """
    substitute = _CALLS.get(name)
    if substitute is None and name.startswith("torch.distributed."):
        substitute = _CLASSES.get(name.rpartition(".")[2])
    return substitute


def _part(_: object, kind: object, __: object, state: object) -> Part:
    """Return the part that a DTensor's pickled state describes: a dictionary, or (attributes, slots)."""
    if isinstance(state, tuple) and len(state) == 2:
        state = state[1]
    known = state if kind is _CLASSES["DTensor"] and isinstance(state, dict) else {}
    rows, spec = known.get("_local_tensor"), known.get("_spec")
    placements = spec.fields.get("placements") if isinstance(spec, Inert) else None
    if not isinstance(rows, torch.Tensor) or not isinstance(placements, tuple) or len(placements) != 1:
        raise PlainPickleError("a tensor is not a DTensor with one placement")
    (placement,) = placements
    if isinstance(placement, _Replicate):
        return Part(rows, None)
    dim = placement.fields.get("dim") if isinstance(placement, _Shard) else None
    if not isinstance(dim, int) or not 0 <= dim < max(rows.dim(), 1):
        raise PlainPickleError("a DTensor is neither cut along one of its dimensions nor replicated")
    return Part(rows, dim)


_CLASSES = {
    "DTensor": Maker(_DTensor), "Shard": Maker(_Shard), "Replicate": Maker(_Replicate),
    "DTensorSpec": Maker(Inert), "TensorMeta": Maker(Inert), "DeviceMesh": Maker(Inert),
    "_MeshLayout": Maker(Inert), "ShardOrderEntry": Maker(Inert),
}  # fmt: skip
_CALLS = {
    "torch._tensor._rebuild_from_type_v2": Maker(_part),
    "torch._utils._rebuild_wrapper_subclass": Maker(Inert),
}


_SHARD = re.compile(r"model_world_size_(\d+)_rank_(\d+)\.pt")


class VerlPt:
    """The format "verl_pt": a file of DTensor shards for each rank."""

    name = "verl_pt"

    def write(self, directory: Path, tag: str, snapshot: Snapshot) -> Written:

        name = f"model_world_size_{snapshot.world_size}_rank_{snapshot.rank}.pt"
        mesh = _mesh(snapshot.rank, snapshot.world_size)
        state = {
            tensor_name: _dtensor(snapshot.parts[number], shape, mesh)
            for number, (tensor_name, _, shape) in enumerate(snapshot.plan.tensors)
        }
        written = _save(state, directory / temporary_name(name, tag))
        return [written_file(directory, name, tag, written.size, written.crc32c)], []

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
    """Return the files in rank order. ValueError unless each rank of one save has a file."""
    by_rank = {(int(m[1]), int(m[2])): name for name in names if (m := _SHARD.fullmatch(name))}
    worlds = sorted({world for world, _ in by_rank})
    if len(worlds) > 1:
        raise ValueError(
            f"{directory}: its manifest lists shards of {worlds} ranks; expected those of one save"
        )
    missing = [rank for rank in range(worlds[0]) if (worlds[0], rank) not in by_rank]
    if missing or len(by_rank) != worlds[0]:
        raise ValueError(f"{directory}: expected shards of {worlds[0]} ranks, got {len(by_rank)}")
    return [by_rank[key] for key in sorted(by_rank)]


_PIECE = 1 << 24  # bytes per piece; limited because the checksum needs a copy of the data


class _Writer:
    """A file object for torch.save.

    size, crc32c: size in bytes and checksum for the written data.
    """

    def __init__(self, file: NewFile) -> None:
        self._file = file
        self.size = self.crc32c = 0

    def write(self, data: Buffer) -> int:
        whole = memoryview(data).cast("B")
        for begin in range(0, len(whole), _PIECE):
            piece = whole[begin : begin + _PIECE]
            self._file.write(piece)
            self.crc32c = _C.crc32c(bytes(piece), self.crc32c)
        self.size += len(whole)
        return len(whole)

    def flush(self) -> None:
        self._file.flush()


def _save(state: Message, path: Path) -> _Writer:
    """Write `state` durably with torch.save. OSError, with the path, if it cannot be written."""
    with NewFile(path) as file:
        writer = _Writer(file)
        try:
            torch.save(state, writer)  # type: ignore[arg-type]
            file.sync()
        except RuntimeError as error:  # torch reports "unexpected pos" if the disk is full
            if file.error is None:
                raise
            raise file.error from error
    return writer


def _mesh(rank: int, world_size: int) -> DeviceMesh:
    from torch.distributed.device_mesh import DeviceMesh

    # Without a backend, because nothing communicates. Reading needs no process group either.
    return DeviceMesh(
        "cpu", torch.arange(world_size), mesh_dim_names=("fsdp",), _init_backend=False, _rank=rank
    )


def _dtensor(part: Rows, shape: list[int], mesh: DeviceMesh) -> DTensor:
    from torch.distributed.tensor import DTensor, Replicate, Shard
    from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta

    stride = torch.empty(shape, device="meta").stride()
    meta = TensorMeta(torch.Size(shape), stride, part.tensor.dtype)
    placement = Shard(0) if part.is_sharded else Replicate()
    spec = DTensorSpec(mesh, (placement,), tensor_meta=meta)
    return DTensor(part.tensor, spec, requires_grad=False)  # type: ignore[no-untyped-call]


def _join(parts: list[Part]) -> torch.Tensor:

    dim = parts[0].dim
    return parts[0].rows.clone() if dim is None else torch.cat([part.rows for part in parts], dim=dim)
