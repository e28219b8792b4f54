"""The rendezvous of all ranks at a store, before the first collective.

Waiting ranks name the missing ranks on stderr. The rendezvous fails on all ranks within seconds if a rank has
another version or world size, if two processes have the same RANK, or if a process rejects its own variables.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from fastsft.ranks.comparison_text import difference, named_ranks
from fastsft.ranks.store import machine, word_of_refused
from fastsft.runtime.terminal import say
from fastsft.runtime.threads import start_needed

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

_FORM = 1  # version of the record that ranks exchange; increased with every change of its content
_FIRST_WORD_S, _WORDS_S, _LOOK_S = 15.0, 60.0, 5.0
_PAUSE_S, _LINGER_S, _PROBE_S, _KNOCK_S = 0.05, 1.0, 2.0, 5.0
_ANSWER_S = 2.0  # wait for the answer of a process on another machine that has the same rank


def meeting_name(round: int) -> str:
    """Return the prefix of a rendezvous' store keys. round: see `RollCall`."""
    return f"fastsft/meeting/{round}"


class RollCall:
    """The rendezvous of this process, which is `rank` of `world_size`, at the store that `connect` returns.

    where: host and port of the store. version: version of fastsft, which must be the same on all ranks.
    serves: True if this rank makes the store. refusals_s: seconds for which connections may be refused; None:
    no limit. round: how many earlier rendezvous this process had, the same on all ranks. knock: connects to
    the store as a client within seconds. A rank that cannot make the store calls it to find out whether
    another process with the same rank already serves a store. restarts: True if a launcher may restart ranks.
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
        self._record = {
            "form": _FORM, "ranks of the run (WORLD_SIZE)": world_size, "version of fastsft": version,
        }  # fmt: skip
        self._store: Store | None = None
        self._state = "connecting"
        self._absent: list[int] | None = None
        self._error: Exception | None = None
        self._met = threading.Event()

    def hold(self, limit_s: float, check: Callable[[], None] = lambda: None) -> Store:
        """Wait until all ranks have arrived, and return the store.

        check: called repeatedly while this rank waits; it may raise. After 15 seconds, and then every minute,
        the lowest rank that has arrived names the missing ranks on stderr. ValueError on all waiting ranks if
        versions or world sizes differ, or if two processes have the same rank. RuntimeError after `limit_s`
        seconds.
        """
        began = said = time.monotonic()
        pause = _FIRST_WORD_S
        # The thread is a daemon because connecting may wait without limit and must not block the exit.
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
                limit = f"--ddp_timeout {limit_s:g}{_way()}"
                say(f"rank {self._rank}: {missing}, for {now - began:.0f} s; {limit}", to_stderr=True)
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
        """Connect to the store.

        A plain socket first waits until the server listens, because torch's client logs every refusal.
        """
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
        """Raise ValueError if the store at the address is served by another process with this rank."""
        with contextlib.suppress(RuntimeError):
            store, end = knock(), time.monotonic() + _KNOCK_S
            while time.monotonic() < end:
                if store.check([self._claim.key]):
                    self._claim_rank(store)
                    return
                time.sleep(_PAUSE_S)

    def _claim_rank(self, store: Store) -> None:
        try:
            self._claim.take(store, met=store.add(self._key("here"), 0) >= self._world_size)
        except ValueError as error:
            self._tell_all(store, str(error))
            raise

    def _wait_for_all(self, store: Store) -> None:
        self._state, looked = "waiting", time.monotonic()
        self._claim_rank(store)
        store.set(self._key(self._rank), json.dumps(self._record))
        is_counted = False
        while not is_counted or store.add(self._key("here"), 0) < self._world_size:
            is_counted = is_counted or self._compare(store)
            self._raise_refusals(store)
            self._claim.answer(store)
            if time.monotonic() - looked > _LOOK_S:
                self._absent, looked = self._look(store), time.monotonic()
            time.sleep(_PAUSE_S)

    def _compare(self, store: Store) -> bool:
        """Count this rank as arrived if its record equals rank 0's record. Return True if it was counted.

        If the records differ, report the difference to all ranks.
        """
        if not store.check([self._key(0)]):
            return False
        first = _read(store.get(self._key(0)))
        if first == self._record:
            again = store.add(self._key(f"here/{self._rank}"), 1) > 1  # this rank was restarted
            store.add(self._key("here"), 0 if again else 1)
            return True
        if first.get("form") != _FORM:
            told = f"rank {self._rank} runs another version of fastsft than rank 0; install the same on all"
        else:
            told = difference({0: _texts(first), self._rank: _texts(self._record)})
        self._tell_all(store, told)
        return False

    def _tell_all(self, store: Store, told: str) -> None:
        store.set(self._key("differs"), json.dumps({"told": told}))

    def _raise_refusals(self, store: Store) -> None:
        told = word_of_refused(store, self._name)
        if store.check([self._key("differs")]):
            told = json.loads(store.get(self._key("differs")))["told"]
        if told is not None:
            if self._rank == 0:  # other ranks must read the reason before the store ends with rank 0
                time.sleep(_LINGER_S)
            raise ValueError(told)

    def _look(self, store: Store) -> list[int] | None:
        """Return the missing ranks; None if a lower rank has arrived, which then reports them."""
        if any(store.check([self._key(rank)]) for rank in range(self._rank)):
            return None
        return [rank for rank in range(self._world_size) if not store.check([self._key(rank)])]

    def _key(self, name: int | str) -> str:
        return f"{self._name}/{name}"

    def _missing(self) -> str | None:
        """Return a phrase that names the missing store or ranks; None if another rank reports them."""
        place = f"{self._where[0]}:{self._where[1]}"
        if self._state != "waiting":
            return f"waiting for the store of rank 0 or of its launcher at {place}: {self._state}"
        if self._absent is None:
            return None
        return f"waiting for {named_ranks(self._absent)} of {self._world_size} at {place}"


def _way() -> str:
    """Return the way out for ranks that no launcher starts, as their number may be a mistake; else ""."""
    is_launched = any(name in os.environ for name in ("TORCHELASTIC_RUN_ID", "SLURM_PROCID"))
    return (
        ""
        if is_launched
        else ("; start the others with this MASTER_ADDR and MASTER_PORT, or unset WORLD_SIZE to train alone")
    )


def _read(record: bytes) -> dict[str, object]:
    """Parse a record; return {} if it is not a JSON object."""
    try:
        content = json.loads(record)
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def _texts(record: Mapping[str, object]) -> dict[str, str]:
    return {name: json.dumps(value) for name, value in record.items() if name != "form"}


def _namespace() -> str:
    """Return a text that is equal for two processes only if they see each other in /proc."""
    with contextlib.suppress(OSError):
        return f"{machine()} {socket.gethostname()} {os.readlink('/proc/self/ns/pid')}"
    return f"{socket.gethostname()} {secrets.token_hex(8)}"


def _started(pid: int) -> str | None:
    """Return the kernel's start time of a process; None if there is no such process."""
    with contextlib.suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    return None


@dataclass(frozen=True)
class _Process:
    """A process that claims to be a rank, with the facts from which other processes can tell if it lives."""

    host: str = field(default_factory=socket.gethostname)
    pid: int = field(default_factory=os.getpid)
    namespace: str = field(default_factory=_namespace)
    began: str | None = field(default_factory=lambda: _started(os.getpid()))
    nonce: str = field(default_factory=lambda: secrets.token_hex(8))

    def lives(self) -> bool | None:
        """True if the process lives, False if it has ended, None if this process cannot see it."""
        if self.namespace != _namespace() or self.began is None:
            return None
        return _started(self.pid) == self.began

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


class Claim:
    """This process's claim, written to the store, to be `rank` of `world_size`.

    name: prefix of the rendezvous' keys. restarts: True if a launcher may restart ranks, so that a
    second process with the same rank may be legitimate.
    """

    def __init__(self, name: str, rank: int, world_size: int, *, restarts: bool) -> None:
        self._rank, self._world_size, self._restarts = rank, world_size, restarts
        self.key = f"{name}/process/{rank}"
        self._mine = _Process()

    def take(self, store: Store, met: bool) -> None:
        """Claim the rank. ValueError if another living process has claimed it.

        met: True if all ranks had already arrived. The claim of a process that has ended is replaced. If the
        other process is on another machine, it is asked through the store whether it still waits (`answer`).
        """
        text = json.dumps(asdict(self._mine))
        held = bytes(store.compare_set(self.key, "", text)).decode()
        if held == text:
            return
        other = _Process(**json.loads(held))
        lives = other.lives()
        if lives is None:
            lives = (met and not self._restarts) or self._answered(store)
        if lives:
            raise ValueError(
                f"RANK: two processes say they are rank {self._rank} of {self._world_size}: {other}, and "
                f"{self._mine}; give each process of the run a RANK of its own, and each run a MASTER_PORT"
            )
        store.set(self.key, text)

    def answer(self, store: Store) -> None:
        """Answer a process that asks whether the holder of this rank still waits; called at every poll."""
        asked = f"{self.key}/asked"
        if store.check([asked]) and (nonce := bytes(store.get(asked)).decode()) != self._mine.nonce:
            store.set(f"{self.key}/lives/{nonce}", self._mine.nonce)

    def _answered(self, store: Store) -> bool:
        store.set(f"{self.key}/asked", self._mine.nonce)
        end = time.monotonic() + _ANSWER_S
        while time.monotonic() < end:
            if store.check([f"{self.key}/lives/{self._mine.nonce}"]):
                return True
            time.sleep(_PAUSE_S)
        return False
