"""Work that rank 0 does first, while the other ranks wait for it or for its result.

The other ranks wait at the process group's store, outside any collective, so that --ddp_timeout does not
apply. The working rank increments a progress count in the store; a waiting rank that reads a new count notes
progress of its own. If the working rank is stuck, the phase's deadline (runtime/timeouts.py) therefore also
ends the waiting ranks.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from itertools import count
from typing import TYPE_CHECKING, Protocol, TypeVar

from fastsft.ranks.process_group import host_collective, join
from fastsft.runtime.launch import launch
from fastsft.runtime.threads import start_needed
from fastsft.runtime.timeouts import heard_by, note_progress

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

_WAIT_SECONDS = 1
_PULSE_SECONDS = 0.25  # least time between two increments of the progress count
_BEAT_SECONDS = 1.0
_turn = count()

T = TypeVar("T")


class Made(Protocol):
    """A result that other ranks can read. cache: (path, key) of its cache file; None if it has none."""

    cache: tuple[str, str] | None

    @property
    def faults(self) -> Sequence[object]: ...


Result = TypeVar("Result", bound=Made)


def while_first_works(work: Callable[[], T]) -> T | None:
    """Return the result of `work` on rank 0, and None on other ranks, which wait for its end. Collective.

    Meant for work without visible progress, such as an upload: rank 0 counts as making progress while its
    process lives. Errors of `work` are raised on rank 0 only.
    """
    place, name = launch(), f"fastsft/first/{next(_turn)}"
    if place.world_size == 1:
        return work()
    if place.rank != 0:
        _wait_for(name)
        return None
    try:
        with heard_by(_Pulse(name)), _heartbeat():
            return work()
    finally:
        _store().set(name, "done")


def relay(make: Callable[[], Result], take: Callable[[str], Result | None]) -> Result:
    """Return the result of `make` on every rank. Collective.

    Rank 0 makes the result, and the other ranks read it from a cache. take: reads the result that is cached
    under a key, and returns None if this machine does not see the cache. In that case the machine's local
    rank 0 makes the result again for its machine. If a rank fails to make the result, the ranks that wait for
    it call `make` themselves and so fail for the same reason.
    """
    place, name = launch(), f"fastsft/relay/{next(_turn)}"
    join()
    if place.rank == 0:
        return _make(make, f"{name}/0")
    key = _wait_for(f"{name}/0")
    product = take(key) if key else None
    if place.local_rank == 0:
        if product is None:
            return _make(make, f"{name}/{place.rank}")
        _store().set(f"{name}/{place.rank}", key)
    leader = place.rank - place.local_rank
    if product is None and leader != 0 and key:
        key = _wait_for(f"{name}/{leader}")
        product = take(key) if key else None
    return product if product is not None else make()


def _make(make: Callable[[], Result], name: str) -> Result:
    key = ""
    try:
        with heard_by(_Pulse(name)):
            product = make()
        if product.cache is not None and not product.faults:
            key = product.cache[1]
        return product
    finally:
        _store().set(name, key)


class _Pulse:
    """A listener that reports the progress of this rank to the ranks that wait for `name`."""

    def __init__(self, name: str) -> None:
        self._key, self._last = _pulse_key(name), 0.0

    def __call__(self) -> None:
        now = time.monotonic()
        if now - self._last >= _PULSE_SECONDS:
            self._last = now
            _store().add(self._key, 1)


@contextmanager
def _heartbeat() -> Iterator[None]:
    """Note progress every second while the block runs, from a thread that stops with the process."""
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(_BEAT_SECONDS):
            note_progress()

    thread = threading.Thread(target=beat, name="fastsft-heartbeat", daemon=True)
    start_needed(thread, "signs of life to other ranks")
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _wait_for(name: str) -> str:
    """Wait for the value of the key `name`, and return it. CollectiveError if the store has gone.

    Waits are short and repeated, so that interrupts and the progress of the working rank are noticed.
    """
    pulse = 0
    while True:
        try:
            _store().wait([name], timedelta(seconds=_WAIT_SECONDS))
            return str(_store().get(name).decode())
        except RuntimeError as error:
            if "timeout" not in str(error).lower():
                with host_collective("waiting for what another rank makes"):
                    raise
        with host_collective("waiting for what another rank makes"):
            heard = int(_store().add(_pulse_key(name), 0))
        if heard != pulse:
            pulse = heard
            note_progress()


def _pulse_key(name: str) -> str:
    return f"{name}/pulse"


def _store() -> Store:
    from torch.distributed import distributed_c10d

    return distributed_c10d._get_default_store()
