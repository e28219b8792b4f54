"""An engine between calls: its lock, its source of weights, and the adapter over fastsft's own trainer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

import torch

from fastsft import _C
from fastsft.checkpoint.checkpoint import load_checkpoint
from fastsft.checkpoint.saver import save_checkpoint
from fastsft.lora.adapted_model import AdaptedModel
from fastsft.model.causal_lm import CausalLM
from fastsft.model.model_save import model_texts
from fastsft.ranks.agreement import Agreement
from fastsft.runtime.messages import warn_once
from fastsft.weight_sync.fsdp1 import Fsdp1Source
from fastsft.weight_sync.interfaces import Engine, NativeEngine
from fastsft.weight_sync.modules import NamedTensorSource, TensorSource, adapters_refused, is_fsdp1
from fastsft.weight_sync.source import BroadcastSource, EngineSource, WeightSource, weights_of

if TYPE_CHECKING:
    from fastsft.checkpoint.saved_run import SavedRun

S = TypeVar("S", bound=BroadcastSource)
_ATTRIBUTE = "_fastsft_weight_sync"
_COMPUTE = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class SyncedTrainer(Protocol):
    """A fastsft Trainer, whose model is sent."""

    @property
    def model(self) -> CausalLM: ...
    @property
    def run(self) -> SavedRun: ...


@dataclass
class EngineState:
    """lock: held by transfers, and by training steps that ask for it. uploaded, broadcast: the newest version
    that arrived on all sides. sent: the newest that receivers may have, though a trainer rank failed then."""

    lock: threading.RLock = field(default_factory=threading.RLock)
    uploaded: int = 0
    broadcast: int = 0
    sent: int = 0
    sources: dict[str, BroadcastSource] = field(default_factory=dict)
    saves: Any = None  # a SaveQueue of save.py
    huggingface_files: tuple[object, dict[str, bytes]] | None = None


def state_of(engine: Engine) -> EngineState:
    """The state of the engine, made at the first call."""
    state: EngineState | None = getattr(engine, _ATTRIBUTE, None)
    if state is None:
        state = EngineState()
        setattr(engine, _ATTRIBUTE, state)
    return state


@contextmanager
def exclusive(engine: Engine, deadline_s: float | None = None) -> Iterator[EngineState]:
    """Transfers and training steps exclude each other: hold this around a step of an engine that is not ours.

    The same thread may hold it twice. RuntimeError when another one holds it for more than `deadline_s`
    seconds; None: as long as that takes.
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
    """An adapter over a `fastsft.Trainer`, or over any object with `model` (built) and `tokenizer`.

    send_master: float32 masters go out instead of what the model computes in (the same in float32 runs).
    """

    _strategy = "fastsft"

    def __init__(self, trainer: SyncedTrainer, *, send_master: bool = False) -> None:
        self.trainer, self.send_master = trainer, send_master
        self.checkpoint_manager = SimpleNamespace(processing_class=getattr(trainer, "tokenizer", None))

    @property
    def module(self) -> CausalLM:
        """The `CausalLM`."""
        return self.trainer.model

    @property
    def native_engine(self) -> _C.Engine:
        """The core's engine. ValueError before the model is built, and for one with adapters."""
        engine: _C.Engine | None = self.trainer.model.engine
        if engine is None:
            raise ValueError("the model has no engine yet; build it (Trainer does) before weights are sent")
        if engine.adapters or isinstance(self.trainer.model, AdaptedModel):
            raise adapters_refused("FastsftEngine")
        return engine

    @property
    def compute_dtype(self) -> torch.dtype:
        """Dtype of the weights that forward reads."""
        return _COMPUTE[_C.compute_dtype(self.native_engine)]

    def load_changed_weights(self) -> bool:
        """Let changes count that a script made in a model that it gave as an object, as `save_model` does.

        True for any; collective. ValueError, on every rank, for what cannot be taken over (LoadedModel).
        """
        model = self.trainer.model
        if getattr(model, "module", None) is None:  # of a directory: nobody but the engine has weights
            return False
        agreement = Agreement("taking over changed weights")
        taken = agreement.attempt(lambda: model.load_weights_before_save("FastsftEngine"))
        return any(agreement.settle(taken))

    @property
    def buffer_dtypes(self) -> Mapping[str, torch.dtype]:
        """Of what is saved with the weights and is no parameter; {} for a `model` that is no CausalLM."""
        model = self.trainer.model
        return model.buffer_dtypes() if isinstance(model, CausalLM) else {}

    def model_texts(self, dtype: torch.dtype) -> dict[str, str]:
        """As `save_model` writes them, in words of `dtype`; {} for a `model` that is no CausalLM."""
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
        """(name, whole tensor) one unit at a time, on every rank, with what a script has changed.

        The call is collective, and every rank must exhaust the iterator.
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
        """A full checkpoint of the trainer in `local_path`; collective. The trainer's own limit prunes."""
        if hdfs_path is not None:
            raise ValueError(
                f"hdfs_path: expected None, got {hdfs_path}; copy the finished directory yourself"
            )
        with exclusive(self):
            save_checkpoint(self.trainer.run, local_path)

    def load_checkpoint(self, local_path: str, *_: object, **__: object) -> dict[str, Any]:
        """Weights, optimizer and random states of `save_checkpoint`; collective."""
        with exclusive(self):
            return load_checkpoint(self.trainer.run, local_path)


def source_of(engine: Engine) -> WeightSource:
    """The source for `engine.module`, or for fastsft's own engine."""
    if hasattr(engine, "native_engine"):
        return EngineSource(cast(NativeEngine, engine))
    if is_fsdp1(engine.module):
        return Fsdp1Source(engine)
    return TensorSource(engine)


def broadcast_source_of(engine: Engine) -> BroadcastSource:
    """The source of a broadcast: an engine that yields its tensors itself decides their names and order."""
    foreign = not hasattr(engine, "native_engine")
    if foreign and hasattr(engine, "get_per_tensor_param") and not is_fsdp1(engine.module):
        return NamedTensorSource(engine)
    return source_of(engine)


def state_source(engine: Engine, state: EngineState) -> WeightSource:
    """`source_of`, made once as long as the engine keeps its module. `refresh` notices what changed in it."""
    return _kept(engine, state, "state", source_of)


def broadcast_source(engine: Engine, state: EngineState) -> BroadcastSource:
    """`broadcast_source_of`, made once as long as the engine keeps its module. Its plan stays, because
    receivers have it, until somebody calls `refresh`."""
    return _kept(engine, state, "broadcast", broadcast_source_of)


def _kept(engine: Engine, state: EngineState, key: str, make: Callable[[Engine], S]) -> S:
    source = state.sources.get(key)
    if source is None or source.weights is not weights_of(engine):
        source = state.sources[key] = make(engine)
    return cast(S, source)
