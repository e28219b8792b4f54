"""Engines in weight sync: their state, their weight sources, and the adapter for a Trainer."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch

from fastsft import _C
from fastsft.checkpoint.external.wrapped import is_fsdp1
from fastsft.checkpoint.load import load_checkpoint
from fastsft.checkpoint.saver import save_checkpoint
from fastsft.lora.adapted_model import AdaptedModel
from fastsft.model.causal_lm import CausalLM
from fastsft.model.model_save import model_texts
from fastsft.ranks.exchange import AllOrNone
from fastsft.runtime.messages import warn_once
from fastsft.weight_sync.interfaces import Engine
from fastsft.weight_sync.modules import Fsdp1Source, NamedTensorSource, TensorSource, adapters_refused
from fastsft.weight_sync.source import (
    BroadcastSource,
    Described,
    Named,
    Rows,
    WeightSource,
    rows_of_whole,
    same_bits,
    weights_of,
)

if TYPE_CHECKING:
    from fastsft.trainer.trainer import Trainer

S = TypeVar("S", bound=BroadcastSource)
_ATTRIBUTE = "_fastsft_weight_sync"
_COMPUTE = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass
class EngineState:
    """The state that weight sync keeps for an engine between calls.

    lock: held by transfers, and by training steps that use `exclusive`.
    uploaded, broadcast: the newest version whose upload or broadcast succeeded on all ranks.
    sent: the newest version that receivers may have, even if a trainer rank failed.
    sources: sources of weights, by kind.
    """

    lock: threading.RLock = field(default_factory=threading.RLock)
    uploaded: int = 0
    broadcast: int = 0
    sent: int = 0
    sources: dict[str, BroadcastSource] = field(default_factory=dict)
    saves: Any = None  # the SaveQueue (save.py)
    huggingface_files: tuple[object, dict[str, bytes]] | None = None


def state_of(engine: Engine) -> EngineState:
    """Return the engine's state, which the first call makes."""
    state: EngineState | None = getattr(engine, _ATTRIBUTE, None)
    if state is None:
        if not hasattr(engine, "module"):
            raise TypeError(
                f"engine: expected an object with the attribute module, got {engine!r:.60}; a Trainer is "
                "given as FastsftEngine(trainer)"
            )
        state = EngineState()
        setattr(engine, _ATTRIBUTE, state)
    return state


@contextmanager
def exclusive(engine: Engine, deadline_s: float | None = None) -> Iterator[EngineState]:
    """Hold the engine's lock in this context, so that no transfer runs during a training step.

    Other libraries' training loops wrap their steps in this context. A thread may nest the context.
    RuntimeError if another thread holds the lock for more than `deadline_s` seconds; None for no limit.
    """
    state = state_of(engine)
    if not state.lock.acquire(timeout=-1 if deadline_s is None else deadline_s):
        raise RuntimeError(
            f"another thread has held the engine for {deadline_s:g} seconds: a training step or a transfer "
            "that does not end"
        )
    try:
        yield state
    finally:
        state.lock.release()


class FastsftEngine:
    """The engine interface of weight sync for a `fastsft.Trainer`.

    trainer: a Trainer, or any object with a built `model` and a `tokenizer`. send_master: True to send the
    float32 master weights instead of the weights in the compute dtype; no difference in float32 runs.
    """

    _strategy = "fastsft"

    def __init__(self, trainer: Trainer, *, send_master: bool = False) -> None:
        if not hasattr(trainer, "model"):
            raise TypeError(
                f"FastsftEngine: expected a fastsft.Trainer, got {trainer!r:.60}; make one of the model first"
            )
        self.trainer, self.send_master = trainer, send_master
        self.checkpoint_manager = SimpleNamespace(processing_class=getattr(trainer, "tokenizer", None))

    @property
    def module(self) -> CausalLM:
        """The model whose weights are sent."""
        return self.trainer.model

    @property
    def native_engine(self) -> _C.Engine:
        """The C++ core's engine. ValueError if the model has none yet, or has adapters."""
        engine: _C.Engine | None = self.trainer.model.engine
        if engine is None:
            raise ValueError("the model has no engine yet; build it (Trainer does) before weights are sent")
        if engine.adapters or isinstance(self.trainer.model, AdaptedModel):
            raise adapters_refused("FastsftEngine")
        return engine

    @property
    def compute_dtype(self) -> torch.dtype:
        """The weights' dtype in forward passes."""
        return _COMPUTE[_C.compute_dtype(self.native_engine)]

    def load_changed_weights(self) -> bool:
        """Load a script's changes to its model object into the engine, as `save_model` does. Collective.

        Return True if there were changes. ValueError on every rank if a change cannot be loaded
        (LoadedModel).
        """
        model = self.trainer.model
        if getattr(model, "module", None) is None:  # loaded from a directory, so only the engine has weights
            return False
        agreement = AllOrNone("taking over changed weights")
        taken = agreement.attempt(lambda: model.load_weights_before_save("FastsftEngine"))
        return any(agreement.settle(taken))

    @property
    def buffer_dtypes(self) -> Mapping[str, torch.dtype]:
        """Dtypes of saved buffers by name; empty unless `model` is a CausalLM."""
        model = self.trainer.model
        return model.buffer_dtypes() if isinstance(model, CausalLM) else {}

    def model_texts(self, dtype: torch.dtype) -> dict[str, str]:
        """Return the texts that `save_model` writes, by file name; empty unless `model` is a CausalLM."""
        if not isinstance(self.trainer.model, CausalLM):
            return {}
        if carried := self.trainer.model.carried():
            warn_once(
                f"a save of weight sync has the trained tensors alone: {len(carried)} others of "
                f"{self.trainer.model.source_directory} ({carried[0].name}, ...) are not in it; "
                "trainer.save_model() writes all"
            )
        tokenizer = getattr(self.trainer, "tokenizer", None)
        return model_texts(self.trainer.model, tokenizer, str(dtype).removeprefix("torch."))

    def get_per_tensor_param(self) -> tuple[Iterator[tuple[str, torch.Tensor]], None]:
        """Return an iterator of (name, whole tensor), and None, as veRL expects. Collective.

        Changes by a script are loaded first. The iterator gathers unit by unit, so every rank must exhaust
        it.
        """
        source = EngineSource(self)
        source.take_changes()
        return (named for unit in source.whole() for named in unit), None

    def save_checkpoint(
        self,
        local_path: str,
        hdfs_path: str | None = None,
        global_step: int = 0,
        max_ckpt_to_keep: int | None = None,
        **_: object,
    ) -> None:
        """Save the trainer's full checkpoint in `local_path`. save_total_limit applies. Collective."""
        if hdfs_path is not None:
            raise ValueError(
                f"hdfs_path: expected None, got {hdfs_path}; copy the finished directory yourself"
            )
        with exclusive(self):
            save_checkpoint(self.trainer._run, local_path)

    def load_checkpoint(self, local_path: str, *_: object, **__: object) -> dict[str, Any]:
        """Restore weights, optimizer and random states from a checkpoint that `save_checkpoint` wrote.

        Collective.
        """
        with exclusive(self):
            return load_checkpoint(self.trainer._run, local_path)


class EngineSource(WeightSource):
    """The source of a `FastsftEngine`'s weights.

    Parameters have the compute dtype. If the engine's `send_master` is True, they are the float32 master
    weights. Buffers have their own dtypes, and values that are converted from the master weights. These
    values are cached, because training does not change buffers.
    """

    def __init__(self, engine: FastsftEngine) -> None:
        super().__init__(engine)
        self._adapter = engine
        self._native, self._master = engine.native_engine, engine.send_master
        self.rank, self.world_size = self._native.rank, self._native.world_size
        self.config = json.loads(self._native.config_json)
        self._dtype = torch.float32 if self._master else engine.compute_dtype
        self._buffers = dict(engine.buffer_dtypes)
        self._units = _C.unit_tensors(self._native)
        self._exact: dict[int, _ExactBuffers] = {}  # by index of the unit

    def model_texts(self, dtype: torch.dtype | None) -> dict[str, str]:
        return self._adapter.model_texts(dtype or self._dtype)

    def take_changes(self) -> bool:
        taken = self._adapter.load_changed_weights()
        if taken:
            self._exact.clear()
        return taken

    def describe(self) -> list[Described]:
        tensors = [tensor for unit in _C.unit_tensors(self._native) for tensor in unit]
        return [
            Described(name, tuple(shape), self._buffers.get(name, self._dtype), name in self._buffers, number)
            for number, (name, shape) in enumerate(tensors)
        ]

    def whole(self) -> Iterator[list[Named]]:
        for unit, tensors in enumerate(self._units):
            buffers = [name for name, _ in tensors if name in self._buffers]
            yield self._with_buffers(unit, buffers) if buffers else self._gathered(unit)

    def _gathered(self, unit: int, *, master: bool = False) -> list[Named]:
        return list(_C.gather_unit(self._native, unit, master=master or self._master))

    def _with_buffers(self, unit: int, names: Sequence[str]) -> list[Named]:
        """Return a gathered unit, with the buffers unrounded and in their own dtypes. Collective.

        names: the buffers' names.
        """
        named = self._gathered(unit)
        exact = self._exact.get(unit)
        if exact is None or not exact.are_of(named):
            rounded = {name: tensor.clone() for name, tensor in named if name in names}
            masters = dict(self._gathered(unit, master=True))
            values = {name: masters[name].to(self._buffers[name], copy=True) for name in names}
            exact = self._exact[unit] = _ExactBuffers(rounded, values)
            named = self._gathered(unit)
        return [(name, exact.values.get(name, tensor)) for name, tensor in named]

    def rows(self) -> Iterator[Rows]:
        for unit in self.whole():
            for name, tensor in unit:
                yield rows_of_whole(name, tensor, name in self._buffers, self.rank, self.world_size)


@dataclass(frozen=True)
class _ExactBuffers:
    """A unit's buffers, by name.

    rounded: in the dtype in which the unit is gathered. values: exact, in the buffers' own dtypes.
    """

    rounded: dict[str, torch.Tensor]
    values: dict[str, torch.Tensor]

    def are_of(self, named: Sequence[Named]) -> bool:
        """Return True if the gathered unit's buffers have the bits from which `values` was computed."""
        return all(same_bits(self.rounded[name], tensor) for name, tensor in named if name in self.rounded)


def source_of(engine: Engine) -> WeightSource:
    """Return a new source for `engine.module`, or for a FastsftEngine."""
    if hasattr(engine, "native_engine"):
        return EngineSource(cast(FastsftEngine, engine))
    if is_fsdp1(engine.module):
        return Fsdp1Source(engine)
    return TensorSource(engine)


def broadcast_source_of(engine: Engine) -> BroadcastSource:
    """Return a new source for broadcasts.

    If the engine has `get_per_tensor_param`, this method decides the names and the order of the tensors.
    """
    foreign = not hasattr(engine, "native_engine")
    if foreign and hasattr(engine, "get_per_tensor_param") and not is_fsdp1(engine.module):
        return NamedTensorSource(engine)
    return source_of(engine)


def state_source(engine: Engine, state: EngineState) -> WeightSource:
    """Return the source of `source_of`, cached as long as the engine has the same module."""
    return _kept(engine, state, "state", source_of)


def broadcast_source(engine: Engine, state: EngineState) -> BroadcastSource:
    """Return the source of `broadcast_source_of`, cached as long as the engine has the same module.

    The source keeps its plan until `refresh`, because receivers have the same plan.
    """
    return _kept(engine, state, "broadcast", broadcast_source_of)


def _kept(engine: Engine, state: EngineState, key: str, make: Callable[[Engine], S]) -> S:
    source = state.sources.get(key)
    if source is None or source.weights is not weights_of(engine):
        source = state.sources[key] = make(engine)
    return cast(S, source)
