"""Modules whose state dict holds whole tensors (plain, DDP) or DTensors (FSDP2), and how DTensors become
whole.

Those that are cut into rows over one mesh are gathered many at a time: an all-gather a tensor costs more
than the bytes of most tensors do.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, cast

import torch
from torch import nn

from fastsft import _C
from fastsft.weight_sync.interfaces import Engine, YieldingEngine
from fastsft.weight_sync.source import (
    BroadcastSource,
    Described,
    Named,
    Rows,
    WeightSource,
    chunk_of,
    rows_of_whole,
)

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor
    from typing_extensions import TypeIs

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
        self._mesh: DeviceMesh | None = None
        self._named: list[tuple[str, torch.Tensor | None]] = []  # None: of `_rows`
        self._rows: list[torch.Tensor] = []
        self._shapes: list[torch.Size] = []

    def takes(self, mesh: DeviceMesh | None) -> bool:
        """True if a tensor of `mesh` (None: a plain one) may join those that are here."""
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
        """All of them; collective over the mesh, if there is one."""
        joined = iter(self._gather() if self._rows else ())
        return [(name, next(joined) if tensor is None else tensor) for name, tensor in self._named]

    def _gather(self) -> list[torch.Tensor]:
        import torch.distributed as dist

        mesh = self._mesh
        assert mesh is not None
        rank, size = mesh.get_local_rank(), mesh.size()
        rows = [_on_mesh(tensor, mesh) for tensor in self._rows]
        packed = _C.pack_rows(rows, self._shapes, rank, size)
        gathered = torch.empty(size * packed.numel(), dtype=torch.uint8, device=packed.device)
        dist.all_gather_into_tensor(gathered, packed, group=mesh.get_group())
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


def _is_direct(tensor: torch.Tensor, mesh: DeviceMesh) -> bool:
    shape: torch.Size = tensor.shape
    large = shape.numel() * tensor.dtype.itemsize >= DIRECT_BYTES
    return large and shape[0] % int(mesh.size()) == 0


def _gather_rows(tensor: torch.Tensor) -> torch.Tensor:
    import torch.distributed as dist

    sharded = cast("DTensor", tensor)
    mesh = sharded._spec.mesh
    rows = _on_mesh(sharded._local_tensor, mesh).contiguous()
    whole = torch.empty(tensor.shape, dtype=tensor.dtype, device=rows.device)
    dist.all_gather_into_tensor(_bytes(whole), _bytes(rows), group=mesh.get_group())
    return whole


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """gloo does not know every dtype."""
    return tensor.view(-1).view(torch.uint8)


def _on_mesh(tensor: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
    """Offloaded tensors go back to the device that their group communicates on."""
    device: str = mesh.device_type
    return tensor if tensor.device.type == device else tensor.to(device)


def row_mesh(tensor: DTensor) -> DeviceMesh | None:
    """The mesh over whose one dimension a DTensor is cut into rows; None for any other layout."""
    from torch.distributed.tensor import Shard

    spec = tensor._spec
    return spec.mesh if tuple(spec.placements) == (Shard(0),) else None


def is_dtensor(tensor: object) -> TypeIs[DTensor]:
    """Without importing torch.distributed.tensor, which nobody needed if it is not there."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and bool(isinstance(tensor, module.DTensor))


def full_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """The whole values; collective for a DTensor."""
    tensor = tensor.detach()
    if not is_dtensor(tensor):
        return tensor
    mesh_device = tensor.device_mesh.device_type
    if tensor.device.type != mesh_device:  # offloaded, while its group communicates on the device
        tensor = tensor.to(mesh_device)
    whole: torch.Tensor = cast("DTensor", tensor).full_tensor()
    return whole


_WRAPPERS = ("_fsdp_wrapped_module", "_orig_mod", "_checkpoint_wrapped_module")
_PARALLEL = (nn.parallel.DistributedDataParallel, nn.DataParallel)


def is_wrapper(module: nn.Module) -> bool:
    """True for PyTorch's first FSDP itself, which nobody needs who has not imported it."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    return fsdp is not None and isinstance(module, fsdp.FullyShardedDataParallel)


def is_fsdp1(module: nn.Module) -> bool:
    """True if PyTorch's first FSDP wraps the module or parts of it."""
    return any(map(is_wrapper, module.modules()))


def check_no_adapters(module: nn.Module) -> None:
    """ValueError for a PeftModel and for layers of peft's tuners, whose tensors have peft's names; imports
    nothing."""
    kinds = (("peft.peft_model", "PeftModel"), ("peft.tuners.tuners_utils", "BaseTunerLayer"))
    known = tuple(getattr(sys.modules[home], name) for home, name in kinds if home in sys.modules)
    if any(isinstance(part, known) for part in module.modules()):
        raise adapters_refused("engine.module")


def adapters_refused(where: str) -> ValueError:
    """The error for a model with adapters at `where`."""
    return ValueError(
        f"{where}: weights of a model with adapters are not sent; save the adapter, or merge it (fastsft "
        "merge), and load that"
    )


@functools.cache
def clean_name(name: str) -> str:
    """A name without what wrappers put into it."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def unwrapped(module: nn.Module) -> nn.Module:
    """The module inside DDP, DataParallel, FSDP1, torch.compile and activation checkpointing."""
    while True:
        inner = module.module if isinstance(module, _PARALLEL) else None
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
    find = getattr(module, "get_input_embeddings", None)
    embedding = None if find is None else find()
    owners = [clean_name(name) for name, part in module.named_modules() if unwrapped(part) is embedding]
    if embedding is not None and not owners:
        owners = [clean_name(name) for name, part in module.named_modules() if part is unwrapped(embedding)]
    return {str(name): f"{owners[0]}.weight" for name in keys} if owners else {}


class TensorSource(WeightSource):
    """A module that is not wrapped by FSDP1. `gathered` tensors of DTensors cost one all-gather each."""

    def __init__(self, engine: Engine) -> None:
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
        check_no_adapters(self._module)
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

    def __init__(self, engine: Engine) -> None:
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
        named, _ = cast(YieldingEngine, self.engine).get_per_tensor_param()
        for name, tensor in named:
            check_is_tensor(name, tensor)
            yield str(name), tensor


def check_is_tensor(name: str, value: object) -> None:
    """ValueError for state that cannot be sent as a tensor."""
    if not isinstance(value, torch.Tensor):
        raise ValueError(
            f"{name}: expected a tensor, got {type(value).__name__}; weight sync sends parameters and "
            "buffers only, keep extra state out of the state dict"
        )
    if value.is_meta:
        raise ValueError(f"{name}: on the meta device, without values; materialise the model first")


def rows_of(
    name: str, tensor: torch.Tensor, is_buffer: bool, rank: int, world_size: int, meshes: dict[int, bool]
) -> Rows:
    """This rank's rows, without a gather where it holds them; collective where it does not."""
    local = own_rows(tensor, rank, world_size, meshes)
    if local is not None:
        return Rows(name, local, chunk_of(tensor.shape, rank, world_size)[0], True)
    return rows_of_whole(name, full_tensor(tensor), is_buffer, rank, world_size)


def is_cut_over_all(tensor: DTensor, world_size: int, meshes: dict[int, bool]) -> bool:
    """True if a DTensor is cut into rows over all ranks, in their order."""
    mesh = row_mesh(tensor)
    if mesh is None:
        return False
    if id(mesh) not in meshes:
        meshes[id(mesh)] = mesh.mesh.tolist() == list(range(world_size))
    return meshes[id(mesh)]


def own_rows(
    tensor: torch.Tensor, rank: int, world_size: int, meshes: dict[int, bool]
) -> torch.Tensor | None:
    """The local part of a DTensor that is cut into rows over all ranks; None where a gather is needed.

    meshes: by identity, whether a mesh is all ranks in order, which takes a mesh a while to say.
    """
    if not is_dtensor(tensor) or not is_cut_over_all(tensor, world_size, meshes):
        return None
    local: torch.Tensor = tensor._local_tensor
    begin, end = chunk_of(tensor.shape, rank, world_size)
    return local if local.shape[0] == end - begin else None
