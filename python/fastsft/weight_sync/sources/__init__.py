"""Sources of weights: fastsft's engine, FSDP1, FSDP2, DDP or a plain module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastsft.weight_sync.engine_state import EngineState
from fastsft.weight_sync.sources.source import BroadcastSource, WeightSource, weights_of


def source_of(engine: Any) -> WeightSource:
    """The source for `engine.module`, or for fastsft's own engine."""
    from fastsft.weight_sync.sources.modules import TensorSource, is_fsdp1

    if hasattr(engine, "native_engine"):
        from fastsft.weight_sync.sources.native import EngineSource

        return EngineSource(engine)
    if is_fsdp1(engine.module):
        from fastsft.weight_sync.sources.fsdp1 import Fsdp1Source

        return Fsdp1Source(engine)
    return TensorSource(engine)


def broadcast_source_of(engine: Any) -> BroadcastSource:
    """The source of a broadcast: an engine that yields its tensors itself decides their names and order."""
    from fastsft.weight_sync.sources.modules import NamedTensorSource, is_fsdp1

    foreign = not hasattr(engine, "native_engine")
    if foreign and hasattr(engine, "get_per_tensor_param") and not is_fsdp1(engine.module):
        return NamedTensorSource(engine)
    return source_of(engine)


def state_source(engine: Any, state: EngineState) -> WeightSource:
    """`source_of`, made once as long as the engine keeps its module. `refresh` notices what changed in it."""
    source: WeightSource = _kept(engine, state, "state", source_of)
    return source


def broadcast_source(engine: Any, state: EngineState) -> BroadcastSource:
    """`broadcast_source_of`, made once as long as the engine keeps its module. Its plan stays, because
    receivers have it, until somebody calls `refresh`."""
    source: BroadcastSource = _kept(engine, state, "broadcast", broadcast_source_of)
    return source


def _kept(engine: Any, state: EngineState, key: str, make: Callable[[Any], BroadcastSource]) -> Any:
    source = state.sources.get(key)
    if source is None or source.weights is not weights_of(engine):
        source = state.sources[key] = make(engine)
    return source


__all__ = [
    "BroadcastSource",
    "WeightSource",
    "broadcast_source",
    "broadcast_source_of",
    "source_of",
    "state_source",
]
