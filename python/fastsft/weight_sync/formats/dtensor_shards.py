"""Reads `.pt` files of DTensors without making a DTensor or a mesh: a file decides what is called otherwise.

`torch.load(weights_only=True)` calls every class that somebody marked as safe, and torch.distributed.tensor
marks DeviceMesh, whose constructor makes a process group. Here a file reaches tensors and inert classes.
"""

from __future__ import annotations

import pickle
import types
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastsft.runtime.named_entries import check_named

if TYPE_CHECKING:
    import torch


class Inert:
    """A substitute for a class of torch.distributed: keeps the state that the file has for it."""

    def __new__(cls, *_: Any) -> Inert:
        """Whatever the file constructs it with."""
        return super().__new__(cls)


class _Shard(Inert):
    dim: Any = None


class _Replicate(Inert):
    pass


class Part:
    """A rank's part of a tensor: `rows`, cut along `dim`; None where every rank holds all of it."""

    def __init__(self, rows: torch.Tensor, dim: int | None) -> None:
        self.rows, self.dim = rows, dim


def read_shard(path: Path) -> dict[str, Part]:
    """The parts by name. ValueError, naming the file, for anything else than a dictionary of DTensors."""
    import torch

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
    def find_class(self, module: str, name: str) -> Any:
        import torch

        found = _STAND_INS.get(name) if module.startswith("torch.distributed") else None
        if found is None:
            found = _calls().get((module, name))
        if found is None and module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            found = getattr(torch, name)
        if found is None:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which no file of shards needs")
        return found


def _part(_: Any, kind: Any, __: Any, state: Any) -> Part:
    import torch

    if isinstance(state, tuple) and len(state) == 2:  # (attributes, slots): DTensor has slots
        state = state[1]
    rows = state.get("_local_tensor") if kind is _DTensor and isinstance(state, dict) else None
    placements = getattr(state.get("_spec"), "placements", None) if rows is not None else None
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


def _calls() -> dict[tuple[str, str], Any]:
    import torch

    return {
        ("torch._tensor", "_rebuild_from_type_v2"): _part,
        ("torch._utils", "_rebuild_wrapper_subclass"): Inert,
        ("torch._utils", "_rebuild_tensor_v2"): torch._utils._rebuild_tensor_v2,
        ("torch.serialization", "_get_layout"): Inert,
        ("torch", "device"): Inert,
        ("torch", "Size"): torch.Size,
        ("collections", "OrderedDict"): OrderedDict,
    }


_PICKLE = types.SimpleNamespace(
    Unpickler=_Unpickler, UnpicklingError=pickle.UnpicklingError, load=pickle.load, __name__="fastsft"
)
