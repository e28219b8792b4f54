"""The rendezvous of all ranks at a store, before the first collective.

Who is missing is told while the others wait; a rank that does not fit, a second process with the same RANK,
and a process that refuses its own variables end it for everybody, within seconds.
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
from fastsft.ranks.store import LOOPBACK, machine, visitors_store
from fastsft.runtime.launch import meeting_place, run_names
from fastsft.runtime.terminal import say
from fastsft.runtime.threads import start_needed

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

_FORM = 1  # of the record; raised with every change of its content
_FIRST_WORD_S, _WORDS_S, _LOOK_S = 15.0, 60.0, 5.0
_PAUSE_S, _LINGER_S, _PROBE_S, _KNOCK_S = 0.05, 1.0, 2.0, 5.0
_ANSWER_S = 2.0  # for a process on another machine that has the same rank
_LIMIT_S, _TELL_PAUSE_S = 15.0, 0.2  # of a process that tells the others why it leaves


def meeting_name(round: int) -> str:
    """Return the first part of all keys of a rendezvous in the store."""
    return f"fastsft/meeting/{round}"


class RollCall:
    """The rendezvous of `world_size` ranks, of which this one is `rank`, at the store that `connect` returns.

    where: host and port. version: of the program, which all must have. serves: this rank makes the store.
    refusals_s: how long nobody may listen there; None without a limit. round: how often this process has met
    others before; the ranks of one rendezvous agree on it. knock: connects as a client, without waiting long:
    a rank that cannot make the store finds out whether another process has. restarts: see `Claim`.
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
        """Wait until all ranks are here, and return the store; `check` is called all the while.

        After 15 seconds, and then each minute, the lowest rank that is here says on stderr who is missing.
        ValueError if a rank has another version or number of ranks, or two processes are the same rank, on
        all that still wait; RuntimeError after `limit_s`.
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
        """Connect, a plain socket first: torch's own client fills the log while nobody listens."""
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
        """ValueError if another process with this rank serves the store; a store of others is no fault."""
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
        """Count this rank as here if its record is that of rank 0; False until rank 0 has one."""
        if not store.check([self._key(0)]):
            return False
        first = _read(store.get(self._key(0)))
        if first == self._record:
            again = store.add(self._key(f"here/{self._rank}"), 1) > 1  # a rank that was started again
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
            if self._rank == 0:  # the store may go with it, and the others still read
                time.sleep(_LINGER_S)
            raise ValueError(told)

    def _look(self, store: Store) -> list[int] | None:
        """Return the absent ranks, on the lowest rank that is here; None on the others."""
        if any(store.check([self._key(rank)]) for rank in range(self._rank)):
            return None
        return [rank for rank in range(self._world_size) if not store.check([self._key(rank)])]

    def _key(self, name: int | str) -> str:
        return f"{self._name}/{name}"

    def _missing(self) -> str | None:
        """Say what this rank waits for; None if another rank says it."""
        place = f"{self._where[0]}:{self._where[1]}"
        if self._state != "waiting":
            return f"waiting for the store of rank 0 or of its launcher at {place}: {self._state}"
        if self._absent is None:
            return None
        return f"waiting for {named_ranks(self._absent)} of {self._world_size} at {place}"


def _read(record: bytes) -> dict[str, object]:
    """Parse a record; {} if it has an unknown form."""
    try:
        content = json.loads(record)
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def _texts(record: Mapping[str, object]) -> dict[str, str]:
    return {name: json.dumps(value) for name, value in record.items() if name != "form"}


def _namespace() -> str:
    """Name the processes that see each other in /proc: those with the same text."""
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
    """A process that says it is a rank."""

    host: str = field(default_factory=socket.gethostname)
    pid: int = field(default_factory=os.getpid)
    namespace: str = field(default_factory=_namespace)
    began: str | None = field(default_factory=lambda: _started(os.getpid()))
    nonce: str = field(default_factory=lambda: secrets.token_hex(8))

    def lives(self) -> bool | None:
        """True if it lives; None if this process cannot see it."""
        if self.namespace != _namespace() or self.began is None:
            return None
        return _started(self.pid) == self.began

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


class Claim:
    """This process's word, in the store, that it is `rank` of `world_size`. name: of the rendezvous.

    restarts: a launcher may start a rank again, so that a second process may come rightly.
    """

    def __init__(self, name: str, rank: int, world_size: int, *, restarts: bool) -> None:
        self._rank, self._world_size, self._restarts = rank, world_size, restarts
        self.key = f"{name}/process/{rank}"
        self._mine = _Process()

    def take(self, store: Store, met: bool) -> None:
        """Claim the rank; ValueError if another living process has it. met: all ranks were here already.

        A process that has ended loses its claim. One on another machine is asked whether it waits (`answer`).
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
        """Tell a process that has come with the same rank that this one waits; called now and then."""
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


def tell_waiting_ranks(reason: str, meeting: str, environ: Mapping[str, str] | None = None) -> None:
    """Tell the ranks that wait why this process leaves: its own variables make no sense.

    Else they would wait until --ddp_timeout. meeting: name of the rendezvous. Tries for 15 seconds: the
    process that serves the store may still be starting.
    """
    env = os.environ if environ is None else environ
    if "MASTER_ADDR" not in env and "SLURM_STEP_NUM_TASKS" not in env:
        return  # nobody waits for a process alone
    try:
        host, port = meeting_place(env)
    except ValueError:
        return
    told = f"process {os.getpid()} on {socket.gethostname()} was started for this run and left: {reason}"
    word = json.dumps({"told": told, "run": run_names(env)})
    end = time.monotonic() + _LIMIT_S
    # A daemon: torch's client waits without a limit for a server that accepts and says nothing.
    thread = threading.Thread(target=_tell, args=(host, port, f"{meeting}/refused", word, end), daemon=True)
    with contextlib.suppress(RuntimeError):  # the system gives no thread
        thread.start()
        thread.join(_LIMIT_S)


def _tell(host: str, port: int, key: str, word: str, end: float) -> None:
    addresses = dict.fromkeys((host, LOOPBACK) if _is_own(host) else (host,))
    while time.monotonic() < end:
        for address in addresses:
            with contextlib.suppress(OSError, ValueError, RuntimeError):
                socket.create_connection((address, port), _PROBE_S).close()
                visitors_store(address, port, 1).set(key, word)
                return
        time.sleep(_TELL_PAUSE_S)


def word_of_refused(store: Store, meeting: str, environ: Mapping[str, str] | None = None) -> str | None:
    """Return the word of a refused process of this run; None without one, or if it is of another run."""
    key = f"{meeting}/refused"
    if not store.check([key]):
        return None
    content = json.loads(store.get(key))
    own = run_names(os.environ if environ is None else environ)
    is_other = any(own.get(name, value) != value for name, value in content["run"].items())
    return None if is_other else str(content["told"])


def _is_own(host: str) -> bool:
    """True for an address of this machine: ranks that share it have a store that listens at loopback only."""
    with contextlib.suppress(OSError):
        socket.create_server((host, 0)).close()
        return True
    return False
