"""Modules whose state dict holds whole tensors (plain, DDP) or DTensors (FSDP2)."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from fastsft.weight_sync.sources.gathering import full_tensor, is_dtensor, row_mesh, whole_tensors
from fastsft.weight_sync.sources.source import (
    BroadcastSource,
    Described,
    Named,
    Rows,
    WeightSource,
    chunk_of,
    rows_of_whole,
)

_WRAPPERS = ("_fsdp_wrapped_module", "_orig_mod", "_checkpoint_wrapped_module")


def is_fsdp1(module: Any) -> bool:
    """True if PyTorch's first FSDP wraps the module or parts of it."""
    fsdp = sys.modules.get("torch.distributed.fsdp")  # not imported: nothing can be wrapped by it
    wrapper = getattr(fsdp, "FullyShardedDataParallel", None)
    return wrapper is not None and any(isinstance(part, wrapper) for part in module.modules())


@functools.cache
def clean_name(name: str) -> str:
    """A name without what wrappers put into it."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def unwrapped(module: Any) -> Any:
    """The module inside DDP, FSDP1, torch.compile and activation checkpointing."""
    while True:
        inner = module.module if isinstance(module, nn.parallel.DistributedDataParallel) else None
        for name in _WRAPPERS:
            inner = module._modules.get(name, inner)
        if inner is None:
            return module
        module = inner


def declared_ties(module: nn.Module) -> dict[str, str]:
    """name -> owner by `_tied_weights_keys`: a list in transformers 4, whose owner is the input embedding."""
    keys = getattr(module, "_tied_weights_keys", None) or {}
    if isinstance(keys, dict):
        return {str(name): str(owner) for name, owner in keys.items()}
    find: Any = getattr(module, "get_input_embeddings", None)
    embedding = None if find is None else find()
    owners = [clean_name(name) for name, part in module.named_modules() if unwrapped(part) is embedding]
    if embedding is not None and not owners:
        owners = [clean_name(name) for name, part in module.named_modules() if part is unwrapped(embedding)]
    return {str(name): f"{owners[0]}.weight" for name in keys} if owners else {}


class TensorSource(WeightSource):
    """A module that is not wrapped by FSDP1. `gathered` tensors of DTensors cost one all-gather each."""

    def __init__(self, engine: Any) -> None:
        super().__init__(engine)
        self._module = unwrapped(engine.module)
        self._held: tuple[list[Named], set[int]] | None = None
        self.config = getattr(self._module, "config", None)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        self._held = self._state()
        try:
            yield
        finally:
            self._held = None

    def describe(self) -> list[Described]:
        state, parameters = self._state()
        return [Described(name, tuple(t.shape), t.dtype, id(t) not in parameters, id(t)) for name, t in state]

    def whole(self) -> Iterator[list[Named]]:
        yield from whole_tensors(self._state()[0])

    def rows(self) -> Iterator[Rows]:
        state, parameters = self._state()
        meshes: dict[int, bool] = {}
        for name, tensor in state:
            yield rows_of(name, tensor, id(tensor) not in parameters, self.rank, self.world_size, meshes)

    def gathers(self) -> bool:
        meshes: dict[int, bool] = {}
        state, _ = self._state()
        return any(is_dtensor(t) and not is_cut_over_all(t, self.world_size, meshes) for _, t in state)

    def declared_ties(self) -> dict[str, str]:
        return declared_ties(self._module)

    def _state(self) -> tuple[list[Named], set[int]]:
        """(names and tensors, identities of the parameters among them)."""
        if self._held is not None:
            return self._held
        # keep_vars: parameters themselves, so that one that two names share is seen to be one.
        state = self._module.state_dict(keep_vars=True)
        for name, value in state.items():
            check_is_tensor(name, value)
        # Only now: after a forward FSDP2 holds whole parameters, and state_dict() puts the sharded ones back.
        parameters = {id(parameter) for parameter in self._module.parameters()}
        return [(clean_name(name), value) for name, value in state.items()], parameters


class NamedTensorSource(BroadcastSource):
    """Tensors that an engine's own `get_per_tensor_param()` yields: its names, in its order, one by one."""

    chooses_tensors = True

    def __init__(self, engine: Any) -> None:
        super().__init__(engine)
        self._module = unwrapped(engine.module)
        self.config = getattr(self._module, "config", None)

    def describe(self) -> list[Described]:
        buffers = {clean_name(name) for name, _ in self._module.named_buffers()}
        return [
            Described(name, tuple(tensor.shape), tensor.dtype, name in buffers, number)
            for number, (name, tensor) in enumerate(self._named())
        ]

    def whole(self) -> Iterator[list[Named]]:
        yield from whole_tensors(self._named())

    def rows(self) -> Iterator[Rows]:
        meshes: dict[int, bool] = {}
        for name, tensor in self._named():
            yield rows_of(name, tensor, False, self.rank, self.world_size, meshes)

    def declared_ties(self) -> dict[str, str]:
        return declared_ties(self._module)

    def _named(self) -> Iterator[Named]:
        named, _ = self.engine.get_per_tensor_param()
        for name, tensor in named:
            check_is_tensor(name, tensor)
            yield str(name), tensor


def check_is_tensor(name: str, value: Any) -> None:
    """ValueError for state that cannot be sent as a tensor."""
    if not isinstance(value, torch.Tensor):
        raise ValueError(
            f"{name}: expected a tensor, got {type(value).__name__}; weight sync sends parameters and "
            "buffers only, keep extra state out of the state dict"
        )
    if value.is_meta:
        raise ValueError(f"{name}: on the meta device, without values; materialise the model first")


def rows_of(
    name: str, tensor: Any, is_buffer: bool, rank: int, world_size: int, meshes: dict[int, bool]
) -> Rows:
    """This rank's rows, without a gather where it holds them; collective where it does not."""
    local = own_rows(tensor, rank, world_size, meshes)
    if local is not None:
        return Rows(name, local, chunk_of(tensor.shape, rank, world_size)[0], True)
    return rows_of_whole(name, full_tensor(tensor), is_buffer, rank, world_size)


def is_cut_over_all(tensor: Any, world_size: int, meshes: dict[int, bool]) -> bool:
    """True if a DTensor is cut into rows over all ranks, in their order."""
    mesh = row_mesh(tensor)
    if mesh is None:
        return False
    if id(mesh) not in meshes:
        meshes[id(mesh)] = mesh.mesh.tolist() == list(range(world_size))
    return meshes[id(mesh)]


def own_rows(tensor: Any, rank: int, world_size: int, meshes: dict[int, bool]) -> torch.Tensor | None:
    """The local part of a DTensor that is cut into rows over all ranks; None where a gather is needed.

    meshes: by identity, whether a mesh is all ranks in order, which takes a mesh a while to say.
    """
    if not is_dtensor(tensor) or not is_cut_over_all(tensor, world_size, meshes):
        return None
    local: torch.Tensor = tensor._local_tensor
    begin, end = chunk_of(tensor.shape, rank, world_size)
    return local if local.shape[0] == end - begin else None
