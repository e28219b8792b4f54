"""Ranks meet at a store: who is missing is told while the others wait, who does not fit is told at once."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from fastsft.ranks.claims import Claim
from fastsft.ranks.comparison_text import difference, named_ranks
from fastsft.ranks.refused_place import word_of_refused
from fastsft.runtime.terminal import say
from fastsft.runtime.threads import start_needed

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

_FORM = 1  # of the record; raised with every change of what is in it
_FIRST_WORD_S, _WORDS_S, _LOOK_S = 15.0, 60.0, 5.0
_PAUSE_S, _LINGER_S, _PROBE_S, _KNOCK_S = 0.05, 1.0, 2.0, 5.0


def meeting_name(round: int) -> str:
    """The first part of all keys of a meeting in the store."""
    return f"fastsft/meeting/{round}"


class RollCall:
    """The meeting of `world_size` ranks, of which this one is `rank`, at the store that `connect` gives.

    where: host and port. version: of the program, which all must have. serves: this rank makes the store.
    refusals_s: how long nobody may listen there; None without a limit. round: how often this process has met
    others before; the ranks of one meeting agree on it. knock: connects as one who does not make the store,
    without waiting long: who cannot make it finds out whether another process has. restarts: see `Claim`.
    """

    def __init__(
        self,
        connect: Callable[[], Store],
        rank: int,
        world_size: int,
        *,
        where: tuple[str, int],
        version: str,
        serves: bool,
        refusals_s: float | None = None,
        round: int = 0,
        knock: Callable[[], Store] | None = None,
        restarts: bool = False,
    ) -> None:
        self._connect, self._rank, self._world_size, self._where = connect, rank, world_size, where
        self._serves, self._refusals_s = serves, refusals_s
        self._name, self._knock = meeting_name(round), knock
        self._claim = Claim(self._name, rank, world_size, restarts=restarts)
        self._mine = {
            "form": _FORM,
            "ranks of the run (WORLD_SIZE)": world_size,
            "version of fastsft": version,
        }
        self._store: Store | None = None
        self._state = "connecting"
        self._absent: list[int] | None = None
        self._error: Exception | None = None
        self._met = threading.Event()

    def hold(self, limit_s: float, check: Callable[[], None] = lambda: None) -> Store:
        """Wait until all ranks are here, and return the store; `check` is called all the while.

        After 15 seconds, and then each minute, the lowest rank that is here says on stderr who is missing.
        ValueError where a rank has another version or number of ranks, and where two processes are the same
        rank, on all that still wait; RuntimeError after `limit_s`.
        """
        began = said = time.monotonic()
        pause = _FIRST_WORD_S
        # A daemon: connecting can wait without a limit, and keeps no process from its end.
        thread = threading.Thread(target=self._run, name="fastsft-meeting", daemon=True)
        start_needed(thread, "the meeting of the ranks")
        while not self._met.wait(_PAUSE_S):
            check()
            now = time.monotonic()
            missing = self._missing() or "waiting for other ranks"
            if now - began > limit_s:
                raise RuntimeError(f"{missing}, in vain for {limit_s:g} seconds (--ddp_timeout)")
            if now - said > pause and self._missing() is not None:
                said, pause = now, _WORDS_S
                line = f"rank {self._rank}: {missing}, for {now - began:.0f} s; --ddp_timeout {limit_s:g}"
                say(line, to_stderr=True)
        if self._error is not None:
            raise self._error
        assert self._store is not None
        return self._store

    def _run(self) -> None:
        try:
            self._store = self._connected()
            self._wait_for_all(self._store)
        except Exception as error:
            self._error = error
        self._met.set()

    def _connected(self) -> Store:
        """A plain socket first: torch's own client fills the log while nobody listens."""
        began = time.monotonic()
        while not self._serves:
            try:
                socket.create_connection(self._where, _PROBE_S).close()
                break
            except OSError as error:
                self._state = f"nobody listens ({error.strerror or error})"
            if self._refusals_s is not None and time.monotonic() - began > self._refusals_s:
                raise RuntimeError(f"the launcher's store is gone: {self._missing()}")
            time.sleep(_PAUSE_S * 4)
        self._state = "connecting"
        try:
            return self._connect()
        except RuntimeError:
            if self._serves and self._knock is not None:
                self._ask_who_serves(self._knock)
            raise

    def _ask_who_serves(self, knock: Callable[[], Store]) -> None:
        """ValueError where that is another process with this rank; nothing for a store of others."""
        with contextlib.suppress(RuntimeError):
            store, end = knock(), time.monotonic() + _KNOCK_S
            while time.monotonic() < end:
                if store.check([self._claim.key]):
                    self._take_place(store)
                    return
                time.sleep(_PAUSE_S)

    def _take_place(self, store: Store) -> None:
        try:
            self._claim.take(store, met=store.add(f"{self._name}/here", 0) >= self._world_size)
        except ValueError as error:
            store.set(f"{self._name}/differs", json.dumps({"told": str(error)}))
            raise

    def _wait_for_all(self, store: Store) -> None:
        """A rank counts as here once its record is that of rank 0."""
        self._state, looked = "waiting", time.monotonic()
        self._take_place(store)
        store.set(self._key(self._rank), json.dumps(self._mine))
        first: dict[str, object] | None = None
        while first != self._mine or store.add(f"{self._name}/here", 0) < self._world_size:
            if first is None and store.check([self._key(0)]):
                first = _read(store.get(self._key(0)))
                if first == self._mine:
                    # A rank that was started again has been counted.
                    again = store.add(f"{self._name}/here/{self._rank}", 1) > 1
                    store.add(f"{self._name}/here", 0 if again else 1)
                else:
                    store.set(f"{self._name}/differs", json.dumps([self._rank, self._mine]))
            if store.check([f"{self._name}/differs"]):
                self._refuse(store)
            if (word := word_of_refused(store, self._name)) is not None:
                self._linger()
                raise ValueError(word)
            self._claim.answer(store)
            if time.monotonic() - looked > _LOOK_S:
                self._absent, looked = self._look(store), time.monotonic()
            time.sleep(_PAUSE_S)

    def _look(self, store: Store) -> list[int] | None:
        """On the lowest rank that is here: those that are not."""
        if any(store.check([self._key(rank)]) for rank in range(self._rank)):
            return None
        return [rank for rank in range(self._world_size) if not store.check([self._key(rank)])]

    def _refuse(self, store: Store) -> None:
        found = json.loads(store.get(f"{self._name}/differs"))
        self._linger()
        if isinstance(found, dict):
            raise ValueError(found["told"])
        rank, other = found
        first = _read(store.get(self._key(0)))
        if first.get("form") != other.get("form"):
            raise ValueError(
                f"rank {rank} runs another version of fastsft than rank 0; install the same on all"
            )
        raise ValueError(difference({0: _texts(first), rank: _texts(other)}))

    def _linger(self) -> None:
        """The store may go with rank 0, and the others still read it."""
        if self._rank == 0:
            time.sleep(_LINGER_S)

    def _key(self, rank: int) -> str:
        return f"{self._name}/{rank}"

    def _missing(self) -> str | None:
        """None where another rank says it."""
        place = f"{self._where[0]}:{self._where[1]}"
        if self._state != "waiting":
            return f"waiting for the store of rank 0 or of its launcher at {place}: {self._state}"
        if self._absent is None:
            return None
        return f"waiting for {named_ranks(self._absent)} of {self._world_size} at {place}"


def _read(record: bytes) -> dict[str, object]:
    """{} of a record in a form that is not known here."""
    try:
        found = json.loads(record)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _texts(record: dict[str, object]) -> dict[str, str]:
    return {name: json.dumps(value) for name, value in record.items() if name != "form"}
