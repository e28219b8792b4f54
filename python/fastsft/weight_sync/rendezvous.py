"""The rendezvous of a weight group's members at their store, repeated if a member is restarted."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import re
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from fastsft.ranks.timed_store import BoundedStore, SilentStoreError
from fastsft.weight_sync.interfaces import Group

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

T = TypeVar("T")
Connect = Callable[["Store", float], Group]
Abort = Callable[[Group], None]

_WAITING, _READY, _CONNECTED, _FAILED = "waiting", "ready", "connected", "failed"
_REPORTED = (_CONNECTED, _FAILED)
_FIRST_CONNECT_S = 5.0  # doubled with each try, because machines may be busy, and members may die
_LEAST_CONNECT_S = 1.0
_LONGEST_REASON = 500
_SLACK_S = 5.0  # lets the backend's own error, which is more useful, come first
_TRIES = 3  # most tries with all members present; further tries would fail, too
_SHORTEST_DELAY, _LONGEST_DELAY = 0.001, 0.05


@dataclass(frozen=True)
class Seat:
    """A member's entry in the store.

    token: random text, new in each try.
    who: process and host.
    generation: its last group's generation; -1 before the first group.
    version: newest version that it has sent or received.
    step: its progress in the try.
    roster: digest over all members' tokens when it last looked; "" until all members have a seat.
    why: reason for a failure.
    """

    token: str
    who: str
    generation: int
    version: int
    step: str = _WAITING
    roster: str = ""
    why: str = ""

    def text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, content: bytes) -> Seat:
        """Parse an entry. RuntimeError for content that no member writes."""
        try:
            return cls(**json.loads(content))
        except (ValueError, TypeError, RecursionError) as error:
            raise RuntimeError(f"the store has a seat that no member wrote: {content[:80]!r}") from error


@dataclass(frozen=True)
class Meeting:
    """A group whose members have all reported that they are connected.

    generation: one more than a member's highest earlier generation. version: newest version that any
    member has.
    """

    group: Group
    generation: int
    version: int


class Rendezvous:
    """One rendezvous of a group's members, who all call `meet`.

    Each rank has a seat in the store. The latest process with a rank takes its seat, so that a restarted
    member replaces the killed process. A try begins when all members have seen the same roster, and succeeds
    if all connect. Otherwise, all members try again until `timeout_s` is over.
    store: used only for this group.
    backend: name for messages.
    abort: called with a group to which some members are not connected.
    """

    def __init__(
        self, store: Store, rank: int, world_size: int, backend: str, timeout_s: float, abort: Abort
    ) -> None:
        self._store, self._rank, self._abort = store, rank, abort
        self._ours = f"{world_size} members over {backend}"
        self._keys = [f"seat/{member}" for member in range(world_size)]
        self._who = f"process {os.getpid()} on {socket.gethostname()}"
        self._timeout_s, self._end = timeout_s, time.monotonic() + timeout_s
        self._connect_s = _FIRST_CONNECT_S
        self._reason: BaseException | None = None  # the reason why this member could not connect
        self._calls = BoundedStore(lambda: store, timeout_s)

    def meet(self, connect: Connect, generation: int, version: int, in_caller: bool = False) -> Meeting:
        """Return the meeting, with the group that `connect` has made on all members.

        connect: called with a store, whose prefix is new in each try, and a limit in seconds.
        generation, version: as in `Seat`.
        in_caller: True to call `connect` on this thread instead of the store's thread.

        ValueError if members have different world sizes or backends, or if another process takes this rank.
        RuntimeError, with the ranks, if members do not arrive within the timeout or cannot connect.
        """
        tries = 0
        try:
            self._check_group()
            while True:
                self._sit(Seat(secrets.token_hex(8), self._who, generation, version))
                group, seats = self._try(connect, in_caller, self._all_ready())
                if group is not None and all(seat.step == _CONNECTED for seat in seats):
                    newest = max(seat.version for seat in seats)
                    return Meeting(group, 1 + max(seat.generation for seat in seats), newest)
                if group is not None:
                    self._abort(group)
                tries += all(seat.step in _REPORTED for seat in seats)
                if tries == _TRIES or time.monotonic() > self._end:
                    self._raise_unconnected(seats)
                self._connect_s *= 2
        finally:
            self._calls.close()

    def _check_group(self) -> None:
        first = self._ask(lambda store: store.compare_set("group", "", self._ours)).decode()
        if first != self._ours:
            raise ValueError(
                f"rank {self._rank} would make a group of {self._ours}; the first who joined it makes one of "
                f"{first}: give world_size and backend alike to every member, or make another group over "
                'another store (dist.PrefixStore("another", store))'
            )

    def _sit(self, seat: Seat) -> None:
        """Take this rank's seat, even if another process has it."""
        self._mine = seat
        self._ask(lambda store: store.set(self._keys[self._rank], seat.text()))

    def _change(self, step: str, roster: str | None = None, why: str = "") -> None:
        """Change the entry in this member's seat. ValueError if another process has taken the seat."""
        roster = self._mine.roster if roster is None else roster
        before, after = self._mine.text(), replace(self._mine, step=step, roster=roster, why=why)
        key = self._keys[self._rank]
        content = self._ask(lambda store: store.compare_set(key, before, after.text()))
        if content.decode() != after.text():
            self._raise_displaced(Seat.parse(content))
        self._mine = after

    def _raise_displaced(self, other: Seat) -> NoReturn:
        raise ValueError(
            f"rank {self._rank}: {other.who} has joined this group under the same rank after {self._who}: "
            "two members have one rank, or this one was taken for dead; give every member a rank of its own, "
            "and call rebuild() on every member"
        )

    def _look(self) -> list[Seat] | None:
        """Return all seats; None while a seat is empty. ValueError if another process has taken this seat."""
        mine = self._keys[self._rank]
        keys = self._keys if self._ask(lambda store: store.check(self._keys)) else [mine]
        contents = self._ask(lambda store: store.multi_get(keys))
        seats = dict(zip(keys, map(Seat.parse, contents), strict=True))
        if seats[mine].token != self._mine.token:
            self._raise_displaced(seats[mine])
        return list(seats.values()) if keys is self._keys else None

    def _all_ready(self) -> list[Seat]:
        """Return the seats when all members have seen the same roster. RuntimeError after the timeout."""
        for _ in self._looks():
            seats = self._look()
            roster = "" if seats is None else _roster(seats)
            if roster != self._mine.roster:
                self._change(step=_READY, roster=roster)
            elif seats is not None and all(seat.roster == roster for seat in seats):
                return seats
            if time.monotonic() > self._end:
                self._raise_missing(seats)
        raise AssertionError

    def _try(self, connect: Connect, in_caller: bool, seats: list[Seat]) -> tuple[Group | None, list[Seat]]:
        """Return the group, or None if this member could not connect, and all seats after the try."""
        group: Group | None = None
        try:
            group = self._connected(connect, in_caller)
        except SilentStoreError:
            raise
        except (RuntimeError, OSError) as error:
            self._reason = error
            self._change(step=_FAILED, why=f"rank {self._rank}: {plain_reason(error)}"[:_LONGEST_REASON])
        else:
            self._change(step=_CONNECTED)
        end = time.monotonic() + self._connect_s + _SLACK_S
        for _ in self._looks():
            found = self._look()
            if found is None or _roster(found) != self._mine.roster or time.monotonic() > end:
                break  # a member has begun another try, or has not reported in time
            seats = found
            if all(seat.step in _REPORTED for seat in seats):
                break
        return group, seats

    def _connected(self, connect: Connect, in_caller: bool) -> Group:
        dist: Any = importlib.import_module("torch.distributed")
        limit_s = max(min(self._connect_s, self._end - time.monotonic()), _LEAST_CONNECT_S)
        store = dist.PrefixStore(self._mine.roster, self._store)
        if in_caller:
            return connect(store, limit_s)
        return self._calls.run(lambda _: connect(store, limit_s), limit_s + _SLACK_S)

    def _raise_missing(self, seats: list[Seat] | None) -> NoReturn:
        if seats is None:
            there = self._ask(lambda store: [store.check([key]) for key in self._keys])
            missing = [rank for rank, is_there in enumerate(there) if not is_there]
            generation, who = 1 + self._mine.generation, "never came"
        else:
            missing = [rank for rank, seat in enumerate(seats) if seat.roster != self._mine.roster]
            # A seat holds the generation before the try. A connected member's generation is one more.
            generation = max(1 + seat.generation + (seat.step == _CONNECTED) for seat in seats)
            who = "came before, and not again"
        raise RuntimeError(
            f"rank {', '.join(map(str, missing))} has not joined generation {generation} of this group "
            f"within {self._timeout_s:g} seconds ({who}): start members again that have ended, and call "
            "rebuild() on all others; this member may call it again"
        )

    def _raise_unconnected(self, seats: list[Seat]) -> NoReturn:
        failed = [seat.why for seat in seats if seat.step == _FAILED]
        silent = [rank for rank, seat in enumerate(seats) if seat.step not in _REPORTED]
        why = "; ".join(failed) or f"rank {', '.join(map(str, silent))} did not answer"
        raise RuntimeError(
            f"all {self._ours} have met in the store, and could not be connected: {why}"
        ) from self._reason

    def _ask(self, work: Callable[[Any], T]) -> T:
        try:
            return self._calls.run(work, max(self._end - time.monotonic(), _SLACK_S))
        except SilentStoreError as error:
            raise SilentStoreError(self._timeout_s, "joining a group for weights") from error
        except RuntimeError as error:
            raise RuntimeError(
                "joining a group for weights: its store is gone, and with it the process that serves it; "
                "make the store again, and give it to every member: rebuild(store)"
            ) from error

    def _looks(self) -> Iterator[None]:
        """Yield whenever to poll the seats: often at first, because members often arrive together."""
        delay = _SHORTEST_DELAY
        while True:
            yield
            time.sleep(delay)
            delay = min(2 * delay, _LONGEST_DELAY)


def _roster(seats: list[Seat]) -> str:
    return hashlib.sha256(" ".join(seat.token for seat in seats).encode()).hexdigest()[:32]


# Patterns of error messages from gloo and torch's stores, and the texts that replace them.
_REASONS = (
    (r"closed by peer|reset by peer|broken pipe|connection refused|pair closure|writev|readv",
     "the connection to another member is closed: its process has ended, or it has given this group up"),
    (r"nbytes|preamble", "another member sends a tensor of another size: the plans differ"),
    (r"timed out|timeout", "another member gave no sign in time"),
    (r"abort|cancel|shut ?down", "the group was given up, here or elsewhere"),
)  # fmt: skip
_ORIGIN = re.compile(r"^(Gloo \w+ failed with )?(\[[^\]]*\.(cc|cpp|h):\d+\]\s*)?")


def plain_reason(error: BaseException) -> str:
    """Return the reason why a group's operation failed, with plain text for known backend messages."""
    first = next(iter(str(error).splitlines()), "") or type(error).__name__
    for pattern, words in _REASONS:
        if re.search(pattern, first, re.IGNORECASE):
            return words
    return _ORIGIN.sub("", first)
