"""State of weight sync for an engine between calls."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

_ATTRIBUTE = "_fastsft_weight_sync"


@dataclass
class EngineState:
    """lock: held by transfers, and by training steps that ask for it. uploaded, broadcast: the newest version
    that arrived on all sides. sent: the newest that receivers may have, though a trainer rank failed then."""

    lock: threading.RLock = field(default_factory=threading.RLock)
    uploaded: int = 0
    broadcast: int = 0
    sent: int = 0
    sources: dict[str, Any] = field(default_factory=dict)
    saves: Any = None
    huggingface_files: tuple[Any, dict[str, bytes]] | None = None


def state_of(engine: Any) -> EngineState:
    """The state of the engine, made at the first call."""
    state: EngineState | None = getattr(engine, _ATTRIBUTE, None)
    if state is None:
        state = EngineState()
        setattr(engine, _ATTRIBUTE, state)
    return state


@contextmanager
def exclusive(engine: Any, deadline_s: float | None = None) -> Iterator[EngineState]:
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
