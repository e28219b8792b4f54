"""One rank does a job, the others take over what it made; nobody waits inside a collective.

How far it has come is a number in the store of the process group, which those who wait look at: it is their
progress, too, so that the deadline of their phase (phase_timeouts.py) ends them when the maker is stuck.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from itertools import count
from typing import Any, Protocol, TypeVar

from fastsft.launcher import host_collective, join, launch
from fastsft.phase_timeouts import heard_by, note_progress

_WAIT_SECONDS = 1
_PULSE_SECONDS = 0.25  # a maker's progress is passed on no more often
_round = count()


class Made(Protocol):
    """What a job makes; `cache` names the file to take it over from, and its key."""

    cache: tuple[str, str] | None
    faults: list[Any]


Result = TypeVar("Result", bound=Made)


def relay(make: Callable[[], Result], take: Callable[[str], Result | None]) -> Result:
    """What global rank 0 makes, on every rank. Every rank must call it, in the same order.

    `take(key)`: reads what was made under `key`, None when it cannot be seen from here. Then the first rank
    of that machine makes it again for its machine. A rank that is told of a failure makes it itself, and
    fails for the same reason. Waits through the store of the process group, as long as the maker lives and
    comes on.
    """
    place, turn = launch(), next(_round)
    join()
    leader = place.rank - place.local_rank
    if place.rank == 0:
        return _make(make, f"fastsft/relay/{turn}/0")
    key = _wait(f"fastsft/relay/{turn}/0")
    found = take(key) if key else None
    if found is not None and place.local_rank != 0:
        return found
    if place.local_rank == 0:
        if found is None:
            return _make(make, f"fastsft/relay/{turn}/{place.rank}")
        _store().set(f"fastsft/relay/{turn}/{place.rank}", key)
        return found
    if leader != 0 and key:
        key = _wait(f"fastsft/relay/{turn}/{leader}")
        found = take(key) if key else None
    return found if found is not None else make()


def _make(make: Callable[[], Result], name: str) -> Result:
    key = ""
    try:
        with heard_by(_Pulse(name)):
            made = make()
        if made.cache is not None and not made.faults:
            key = made.cache[1]
        return made
    finally:
        _store().set(name, key)


class _Pulse:
    """Passes the progress of this rank on to those who wait for `name`."""

    def __init__(self, name: str) -> None:
        self._name, self._last = _pulse_of(name), 0.0

    def __call__(self) -> None:
        now = time.monotonic()
        if now - self._last >= _PULSE_SECONDS:
            self._last = now
            _store().add(self._name, 1)


def _pulse_of(name: str) -> str:
    return f"{name}/pulse"


def _wait(name: str) -> str:
    """Short waits in a row, so that an interrupt is heard, and the progress of the maker."""
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


def _heard(name: str) -> int:
    with host_collective("waiting for what another rank makes"):
        return int(_store().add(_pulse_of(name), 0))


def _store() -> Any:
    from torch.distributed import distributed_c10d

    return distributed_c10d._get_default_store()
