"""Ranks wait for another one through the store of the process group, as long as it lives and comes on.

How far it has come is a number in the store, which those who wait look at: it is their progress, too, so
that the deadline of their phase (runtime/timeouts.py) ends them when that rank is stuck. No collective waits
meanwhile, so that --ddp_timeout does not count.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import count
from typing import TYPE_CHECKING, TypeVar

from fastsft.ranks.process_group import host_collective
from fastsft.runtime.launch import launch
from fastsft.runtime.threads import start_needed
from fastsft.runtime.timeouts import heard_by, note_progress

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

_WAIT_SECONDS = 1
_PULSE_SECONDS = 0.25  # progress is passed on no more often
_BEAT_SECONDS = 1.0
_round = count()

T = TypeVar("T")


def while_first_works(work: Callable[[], T]) -> T | None:
    """The result of `work` on global rank 0; None elsewhere, when it is done. Every rank must call it.

    For work whose progress nobody can see, such as an upload: that the process lives is its progress. What
    `work` raises is raised on rank 0 alone.
    """
    place, name = launch(), f"fastsft/first/{next(_round)}"
    if place.world_size == 1:
        return work()
    if place.rank != 0:
        wait_for(name)
        return None
    try:
        with heard_by(Pulse(name)), _heartbeat():
            return work()
    finally:
        announce(name, "done")


@contextmanager
def _heartbeat() -> Iterator[None]:
    """Inside, a thread notes progress every second; it stops with the process."""
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


class Pulse:
    """Passes the progress of this rank on to those who wait for `name`."""

    def __init__(self, name: str) -> None:
        self._name, self._last = _pulse_of(name), 0.0

    def __call__(self) -> None:
        now = time.monotonic()
        if now - self._last >= _PULSE_SECONDS:
            self._last = now
            _store().add(self._name, 1)


def announce(name: str, value: str) -> None:
    """End the waiting for `name`, with `value`."""
    _store().set(name, value)


def wait_for(name: str) -> str:
    """The text announced under `name`. Short waits in a row hear interrupts, and the progress of the maker.

    CollectiveError when the store is gone.
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
        heard = _heard(name)
        if heard != pulse:
            pulse = heard
            note_progress()


def _pulse_of(name: str) -> str:
    return f"{name}/pulse"


def _heard(name: str) -> int:
    with host_collective("waiting for what another rank makes"):
        return int(_store().add(_pulse_of(name), 0))


def _store() -> Store:
    from torch.distributed import distributed_c10d

    return distributed_c10d._get_default_store()
