"""One rank does a job, the others take over what it made.

Nobody waits inside a collective: ranks/progress_wait.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Protocol, TypeVar

from fastsft.ranks.process_group import join
from fastsft.ranks.progress_wait import Pulse, announce, wait_for
from fastsft.runtime.launch import launch
from fastsft.runtime.timeouts import heard_by

_round = count()


class Made(Protocol):
    """The product of a job; `cache` names the file to take it over from, and its key."""

    cache: tuple[str, str] | None

    @property
    def faults(self) -> Sequence[object]: ...


Result = TypeVar("Result", bound=Made)


def relay(make: Callable[[], Result], take: Callable[[str], Result | None]) -> Result:
    """The product of global rank 0, on every rank. Every rank must call it, in the same order.

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
    key = wait_for(f"fastsft/relay/{turn}/0")
    found = take(key) if key else None
    if found is not None and place.local_rank != 0:
        return found
    if place.local_rank == 0:
        if found is None:
            return _make(make, f"fastsft/relay/{turn}/{place.rank}")
        announce(f"fastsft/relay/{turn}/{place.rank}", key)
        return found
    if leader != 0 and key:
        key = wait_for(f"fastsft/relay/{turn}/{leader}")
        found = take(key) if key else None
    return found if found is not None else make()


def _make(make: Callable[[], Result], name: str) -> Result:
    key = ""
    try:
        with heard_by(Pulse(name)):
            made = make()
        if made.cache is not None and not made.faults:
            key = made.cache[1]
        return made
    finally:
        announce(name, key)
