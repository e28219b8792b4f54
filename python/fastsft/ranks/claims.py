"""Every rank of a meeting is one process: a second one with the same RANK is found when it comes."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from fastsft.ranks.machine import machine

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

_ANSWER_S, _PAUSE_S = 2.0, 0.05


def _namespace() -> str:
    """Processes with the same text see each other in /proc."""
    with contextlib.suppress(OSError):
        return f"{machine()} {socket.gethostname()} {os.readlink('/proc/self/ns/pid')}"
    return f"{socket.gethostname()} {secrets.token_hex(8)}"


def _started(pid: int) -> str | None:
    """The time when the process began, as the kernel counts; None where there is none."""
    with contextlib.suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    return None


@dataclass(frozen=True)
class _Process:
    """Whoever says it is a rank."""

    host: str = field(default_factory=socket.gethostname)
    pid: int = field(default_factory=os.getpid)
    namespace: str = field(default_factory=_namespace)
    began: str | None = field(default_factory=lambda: _started(os.getpid()))
    nonce: str = field(default_factory=lambda: secrets.token_hex(8))

    def lives(self) -> bool | None:
        """None where this process cannot see it."""
        if self.namespace != _namespace() or self.began is None:
            return None
        return _started(self.pid) == self.began

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


class Claim:
    """This process's word, in the store, that it is `rank` of `world_size`. name: of the meeting.

    restarts: whether a launcher may start a rank again, so that others than the first may come rightly.
    """

    def __init__(self, name: str, rank: int, world_size: int, *, restarts: bool) -> None:
        self._rank, self._world_size, self._restarts = rank, world_size, restarts
        self.key = f"{name}/process/{rank}"
        self._mine = _Process()

    def take(self, store: Store, met: bool) -> None:
        """met: whether all ranks were here already. ValueError where another living process is this rank.

        One that has ended is forgotten. One on another machine is asked whether it still waits (`answer`).
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
        """Now and then while this process waits, for one that has come with the same rank."""
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
