"""Weight sources: modules (plain, DDP, FSDP1, FSDP2), and engines that yield their own tensors."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import cast

import torch
from torch import nn

from fastsft.checkpoint.external.wrapped import (
    clean_name,
    fsdp1_buffer_dtypes,
    full_tensor,
    is_dtensor,
    is_fsdp1_wrapper,
    unwrapped,
)
from fastsft.weight_sync.dtensors import is_cut_over_all, own_rows, whole_tensors
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


class TensorSource(WeightSource):
    """The weight source for a module that is not wrapped by FSDP1."""

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
        """Return the state dict as pairs (name, tensor), and the parameters' ids among the tensors."""
        if self._held is not None:
            return self._held
        check_no_adapters(self._module)
        # keep_vars yields the parameters themselves, so that a parameter with two names is recognized by its
        # id.
        state = self._module.state_dict(keep_vars=True)
        for name, value in state.items():
            check_is_tensor(name, value)
        # After state_dict(), which reshards, because FSDP2 may hold whole parameters after a forward pass.
        parameters = {id(parameter) for parameter in self._module.parameters()}
        return [(clean_name(name), value) for name, value in state.items()], parameters


class Fsdp1Source(WeightSource):
    """The weight source for a module that FSDP1 wraps, as a whole or in parts.

    Each unit holds one FSDP wrapper's tensors. Wrappers nested in it are separate units. Tensors
    outside all wrappers come first.
    """

    lends_memory = True

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._module = engine.module
        self._inner = unwrapped(engine.module)
        self.config = getattr(self._inner, "config", None)
        self._buffer_dtypes = fsdp1_buffer_dtypes(self._module)

    def describe(self) -> list[Described]:
        check_no_adapters(self._module)
        found = []
        for unit, tensors in enumerate(self.whole()):
            kept = [tensor for _, tensor in tensors]  # ids are unique only while the tensors exist
            for name, tensor in tensors:
                parameter = isinstance(tensor, nn.Parameter)
                identity = id(tensor) + (unit << 64)
                found.append(Described(name, tuple(tensor.shape), tensor.dtype, not parameter, identity))
            del kept
        return found

    def whole(self) -> Iterator[list[Named]]:
        yield list(self._tensors("", self._module))
        for name, module in self._module.named_modules():
            if is_fsdp1_wrapper(module):
                prefix = clean_name(name)
                with type(module).summon_full_params(module, recurse=False, writeback=False):
                    yield list(self._tensors(f"{prefix}." if prefix else "", module._fsdp_wrapped_module))

    def rows(self) -> Iterator[Rows]:
        for unit in self.whole():
            for name, tensor in unit:
                is_buffer = not isinstance(tensor, nn.Parameter)
                yield rows_of_whole(name, tensor.detach(), is_buffer, self.rank, self.world_size)

    def refresh(self) -> None:
        pass  # flat parameters' names, shapes and dtypes never change; describing would gather them all

    def declared_ties(self) -> dict[str, str]:
        return declared_ties(self._inner)

    def _tensors(self, prefix: str, module: nn.Module) -> Iterator[Named]:
        """Yield the tensors in the module and its children, except those inside nested wrappers."""
        if is_fsdp1_wrapper(module):
            return
        if type(module).get_extra_state is not nn.Module.get_extra_state:
            check_is_tensor(f"{prefix}_extra_state", module.get_extra_state())
        for name, parameter in module._parameters.items():
            if parameter is not None and not _is_flat(parameter):
                check_is_tensor(prefix + name, parameter)
                yield prefix + name, full_parameter(parameter)
        for name, buffer in module._buffers.items():
            if buffer is not None and name not in module._non_persistent_buffers_set:
                yield prefix + name, buffer.to(self._buffer_dtypes.get(prefix + name, buffer.dtype))
        for name, child in module._modules.items():
            if child is not None:
                inner = clean_name(name)
                yield from self._tensors(f"{prefix}{inner}." if inner else prefix, child)


class NamedTensorSource(BroadcastSource):
    """The source of the tensors that an engine's `get_per_tensor_param()` yields, in the same order."""

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


def check_no_adapters(module: nn.Module) -> None:
    """Raise ValueError if a module is a PeftModel or has peft layers, whose tensors have peft's names."""
    kinds = (("peft.peft_model", "PeftModel"), ("peft.tuners.tuners_utils", "BaseTunerLayer"))
    known = tuple(getattr(sys.modules[home], name) for home, name in kinds if home in sys.modules)
    if any(isinstance(part, known) for part in module.modules()):
        raise adapters_refused("engine.module")


def adapters_refused(where: str) -> ValueError:
    """Return the error for a model with adapters.

    where: phrase that begins the message.
    """
    return ValueError(
        f"{where}: weights of a model with adapters are not sent; save the adapter, or merge it (fastsft "
        "merge), and load that"
    )


def declared_ties(module: nn.Module) -> dict[str, str]:
    """Map tied names to the tensor's owner, by `_tied_weights_keys`.

    In transformers 4, the embedding owns all tied tensors.
    """
    keys = getattr(module, "_tied_weights_keys", None) or {}
    if isinstance(keys, dict):
        return {str(name): str(owner) for name, owner in keys.items()}
    find = getattr(module, "get_input_embeddings", None)
    embedding = None if find is None else find()
    owners = [clean_name(name) for name, part in module.named_modules() if unwrapped(part) is embedding]
    if embedding is not None and not owners:
        owners = [clean_name(name) for name, part in module.named_modules() if part is unwrapped(embedding)]
    return {str(name): f"{owners[0]}.weight" for name in keys} if owners else {}


def check_is_tensor(name: str, value: object) -> None:
    """Raise ValueError unless `value` is a tensor that has values."""
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
    """Return this rank's rows in a tensor. Collective, unless each rank already holds exactly its rows."""
    local = own_rows(tensor, rank, world_size, meshes)
    if local is not None:
        return Rows(name, local, chunk_of(tensor.shape, rank, world_size)[0], True)
    return rows_of_whole(name, full_tensor(tensor), is_buffer, rank, world_size)


def _is_flat(parameter: nn.Parameter) -> bool:
    return isinstance(parameter, sys.modules["torch.distributed.fsdp"].FlatParameter)


def full_parameter(parameter: torch.Tensor) -> torch.Tensor:
    """Return the whole parameter, which is the same object unless it must be gathered."""
    return parameter if type(parameter) is nn.Parameter else nn.Parameter(full_tensor(parameter))
