"""`model_world_size_<W>_rank_<r>.pt`: DTensors for veRL's merger (docs/spec/weight_sync.md, section 2.3).

Every tensor is a DTensor on a mesh ("fsdp",) of W ranks: parameters cut into rows, unpadded, empty where a
rank has none; buffers and scalars replicated. A plain tensor would be taken from rank 0 only, or repeated.
Files are read without making a DTensor or a mesh: `torch.load(weights_only=True)` calls every class that
somebody marked as safe, and torch.distributed.tensor marks DeviceMesh, whose constructor makes a process
group. Here a file reaches tensors and inert classes.
"""

from __future__ import annotations

import pickle
import re
import types
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from fastsft.runtime.named_entries import check_named
from fastsft.runtime.new_files import NewFile
from fastsft.weight_sync.files import Written, temporary_name, written_file
from fastsft.weight_sync.interfaces import Message

if TYPE_CHECKING:
    from fastsft.weight_sync.source import Rows
    from fastsft.weight_sync.tensor_stream import Snapshot


if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor


class Inert:
    """A substitute for a class of torch.distributed: keeps the state that the file has for it."""

    def __new__(cls, *_: object) -> Inert:
        """Whatever the file constructs it with."""
        return super().__new__(cls)


class _Shard(Inert):
    dim: object = None


class _Replicate(Inert):
    pass


class Part:
    """A rank's part of a tensor: `rows`, cut along `dim`; None where every rank holds all of it."""

    def __init__(self, rows: torch.Tensor, dim: int | None) -> None:
        self.rows, self.dim = rows, dim


def read_shard(path: Path) -> dict[str, Part]:
    """The parts by name. ValueError, naming the file, for anything else than a dictionary of DTensors."""
    try:
        content = torch.load(path, map_location="cpu", mmap=True, weights_only=False, pickle_module=_PICKLE)
    except FileNotFoundError:
        raise
    except Exception as error:  # torch raises many kinds for a damaged file
        raise ValueError(
            f"{path}: not a file of shards: {next(iter(str(error).splitlines()), type(error).__name__)}"
        ) from error
    check_named(path, content, Part, "a DTensor")
    parts: dict[str, Part] = content
    return parts


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> object:

        found: object = _STAND_INS.get(name) if module.startswith("torch.distributed") else None
        if found is None:
            found = _calls().get((module, name))
        if found is None and module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            found = getattr(torch, name)
        if found is None:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which no file of shards needs")
        return found


def _part(_: object, kind: object, __: object, state: object) -> Part:

    if isinstance(state, tuple) and len(state) == 2:  # (attributes, slots): DTensor has slots
        state = state[1]
    known = state if kind is _DTensor and isinstance(state, dict) else {}
    rows = known.get("_local_tensor")
    placements = getattr(known.get("_spec"), "placements", None) if rows is not None else None
    if not isinstance(rows, torch.Tensor) or not isinstance(placements, tuple) or len(placements) != 1:
        raise pickle.UnpicklingError("a tensor is not a DTensor with one placement")
    (placement,) = placements
    if isinstance(placement, _Replicate):
        return Part(rows, None)
    dim = placement.dim if isinstance(placement, _Shard) else None
    if not isinstance(dim, int) or not 0 <= dim < max(rows.dim(), 1):
        raise pickle.UnpicklingError("a DTensor is neither cut along one of its dimensions nor replicated")
    return Part(rows, dim)


class _DTensor(Inert):
    pass


_STAND_INS = {
    "DTensor": _DTensor, "Shard": _Shard, "Replicate": _Replicate, "DTensorSpec": Inert, "TensorMeta": Inert,
    "DeviceMesh": Inert, "_MeshLayout": Inert, "ShardOrderEntry": Inert,
}  # fmt: skip


# What the storages of v3's tensors are of; no class, so that a file cannot make one of any size.
_BYTES = types.SimpleNamespace(dtype=torch.uint8)


def _calls() -> dict[tuple[str, str], object]:

    return {
        ("torch._tensor", "_rebuild_from_type_v2"): _part,
        ("torch._utils", "_rebuild_wrapper_subclass"): Inert,
        ("torch._utils", "_rebuild_tensor_v2"): torch._utils._rebuild_tensor_v2,
        ("torch._utils", "_rebuild_tensor_v3"): torch._utils._rebuild_tensor_v3,  # of float8, uint16, ...
        ("torch.storage", "UntypedStorage"): _BYTES,
        ("torch.serialization", "_get_layout"): Inert,
        ("torch", "device"): Inert,
        ("torch", "Size"): torch.Size,
        ("collections", "OrderedDict"): OrderedDict,
    }


_PICKLE = types.SimpleNamespace(
    Unpickler=_Unpickler, UnpicklingError=pickle.UnpicklingError, load=pickle.load, __name__="fastsft"
)


_SHARD = re.compile(r"model_world_size_(\d+)_rank_(\d+)\.pt")


class VerlPt:
    """Needs `fsdp_config.json` and `huggingface/` next to it, which every save writes."""

    name = "verl_pt"

    def write(self, directory: Path, tag: str, snapshot: Snapshot) -> Written:

        name = f"model_world_size_{snapshot.world_size}_rank_{snapshot.rank}.pt"
        mesh = _mesh(snapshot.rank, snapshot.world_size)
        state = {
            tensor_name: _dtensor(snapshot.parts[number], shape, mesh)
            for number, (tensor_name, _, shape) in enumerate(snapshot.plan.tensors)
        }
        _save(state, directory / temporary_name(name, tag))
        return [written_file(directory, name, tag)], []

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


def _save(state: Message, path: Path) -> None:
    """torch.save, durable on return. OSError names the path where it cannot be written."""
    with NewFile(path) as file:
        try:
            torch.save(state, file)  # type: ignore[arg-type]
            file.sync()
        except RuntimeError as error:  # torch says "unexpected pos" where a disk is full
            if file.error is None:
                raise
            raise file.error from error


def _mesh(rank: int, world_size: int) -> DeviceMesh:
    from torch.distributed.device_mesh import DeviceMesh

    # Without a backend: nothing communicates, and the reader needs no process group either.
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
