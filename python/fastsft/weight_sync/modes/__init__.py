"""Modes of transfer: one file a mode, which registers itself."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from fastsft.weight_sync.plan import SyncPlan
    from fastsft.weight_sync.sources.source import Load
    from fastsft.weight_sync.tensor_stream import Feed
    from fastsft.weight_sync.transport import Transport


@dataclass(frozen=True)
class SyncOptions:
    """bucket_bytes: of a bucket, chunk or batch. announce: called with each SGLang request. checksum: of the
    native mode's buckets on the host. version: of the native mode."""

    bucket_bytes: int
    version: int
    announce: Callable[[dict[str, Any]], Any] | None = None
    checksum: bool = True


class Mode(Protocol):
    """Both ends of a wire format."""

    name: str
    handshakes: bool  # always; other modes do where both ends are ours and ask for it
    every_rank: bool  # each trainer rank sends its own rows, in a group of its own with the receivers

    def send(self, feed: Feed, plan: SyncPlan, transport: Transport, options: SyncOptions) -> None:
        """On the sender, once for all tensors."""

    def receive(self, plan: SyncPlan, transport: Transport, options: SyncOptions, load: Load) -> None:
        """On a receiver; `load` is given tensors as they are complete."""


_modes: dict[str, Mode] = {}


def register(make: Callable[[], Mode]) -> Callable[[], Mode]:
    """A decorator for the class of a mode."""
    made = make()
    if made.name in _modes:
        raise ValueError(f"sync mode {made.name} is registered twice")
    _modes[made.name] = made
    return make


def sync_modes() -> dict[str, Mode]:
    """All modes by name."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return _modes


def sync_mode(name: str) -> Mode:
    """ValueError names the modes there are."""
    known = sync_modes()
    if name not in known:
        raise ValueError(f"mode: expected one of {', '.join(sorted(known))}, got {name!r}")
    return known[name]
