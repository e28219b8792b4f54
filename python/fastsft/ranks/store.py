"""The stores at which ranks meet, and this process's second connection to the store of its group."""

from __future__ import annotations

import functools
import itertools
import os
import socket
import threading
import weakref
from collections import defaultdict
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastsft.ranks.timed_store import BoundedStore

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

LOOPBACK = "127.0.0.1"
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"  # "True": torchrun serves the store
_CONNECT_SECONDS, _PAUSES_SECONDS = 10.0, 5.0  # tried twice by torch
_own: tuple[Store, BoundedStore] | None = None  # the default store, and our connection to it
_counted: tuple[weakref.ref[Store] | None, defaultdict[str, itertools.count[int]]] = (
    None,
    defaultdict(itertools.count),
)
_making = threading.Lock()


class HeldPort:
    """A free port of this machine for MASTER_PORT, kept from every other program until `close`.

    The socket is bound and never listens: the kernel gives its port to no program that asks for any port, and
    with SO_REUSEADDR on both sides rank 0, which asks for this port, can listen on it. A port that is looked
    up and released can be given away before rank 0 comes.
    """

    def __init__(self) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind((LOOPBACK, 0))
        self.number = int(self._socket.getsockname()[1])

    def close(self) -> None:
        """Release the port, once the ranks have met, or are gone; a second call does nothing."""
        self._socket.close()


def loopback_store(rank: int, world_size: int, timeout: timedelta, port: int) -> Store:
    """Make a TCPStore of rank 0 that listens on 127.0.0.1 only; torch's own accepts every machine.

    RuntimeError if the port is taken, or rank 0 does not come within the timeout.
    """
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    options: dict[str, Any] = {"timeout": timeout, "wait_for_workers": False}
    if rank != 0:
        return TCPStore(LOOPBACK, port, world_size, is_master=False, **options)
    listener = socket.socket()
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((LOOPBACK, port))
        listener.listen(max(128, world_size))
    except OSError as error:
        listener.close()
        raise RuntimeError(
            f"MASTER_PORT: cannot listen on {LOOPBACK}:{port}: {error.strerror}; choose another MASTER_PORT"
        ) from error
    return TCPStore(LOOPBACK, port, world_size, is_master=True, master_listen_fd=listener.detach(), **options)


def serves_store(env: Mapping[str, str]) -> bool:
    """True if the launcher serves the store of the ranks, as torchrun does."""
    return env.get(_AGENT_STORE) == "True"


def meeting_store(rank: int, world_size: int, timeout: timedelta, *, here: bool) -> Store:
    """Connect to the store at MASTER_ADDR and MASTER_PORT: torchrun's, or a store that rank 0 makes.

    here: all ranks share this machine (`loopback_store`). Waits for the server, and for no other rank.
    """
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if here:
        return loopback_store(rank, world_size, timeout, port)
    of_torchrun = serves_store(os.environ)
    store = TCPStore(
        host, port, world_size, is_master=rank == 0 and not of_torchrun, timeout=timeout,
        multi_tenant=not of_torchrun, wait_for_workers=False,
    )  # fmt: skip
    return _of_attempt(store)


def _of_attempt(store: Store) -> Store:
    """Give each attempt of torchrun names of its own, as torch's rendezvous does.

    torchrun's store outlives the ranks that it starts again; keys of an earlier attempt are never read.
    """
    if not serves_store(os.environ):
        return store
    from torch.distributed import PrefixStore  # type: ignore[attr-defined]

    return PrefixStore(f"/worker/attempt_{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)


def visitors_store(host: str, port: int, world_size: int) -> Store:
    """Connect to the store at an address. RuntimeError, within seconds, if nobody serves one."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    timeout = timedelta(seconds=_PAUSES_SECONDS)
    return _of_attempt(
        TCPStore(host, port, world_size, is_master=False, timeout=timeout, wait_for_workers=False)
    )


def own_store() -> BoundedStore:
    """Return this process's second connection to its group's store, for threads next to the training.

    A call that waits on the first connection keeps all other threads out; on this connection every call must
    be quick, and callers wait no longer than they say, else as long as a collective may take. It is made
    once: with the groups of `join`, or at the first call if another program made the group, without waiting.
    """
    from torch.distributed import distributed_c10d

    global _own
    with _making:
        default: Store = distributed_c10d._get_default_store()
        if _own is None or _own[0] is not default or _own[1].failed():
            _close_own()
            usual: timedelta = default.timeout  # type: ignore[attr-defined]  # torch's stub has none
            made = BoundedStore(functools.partial(_connection, default, usual), usual.total_seconds())
            _own = default, made
        return _own[1]


def _connection(default: Store, usual: timedelta) -> Store:
    """Clone the store with a short timeout: the usual one waits for a lost rank 0 like a collective."""
    default.set_timeout(timedelta(seconds=_CONNECT_SECONDS))
    try:
        made: Store = default.clone()  # type: ignore[attr-defined]  # torch's stub has none
    finally:
        default.set_timeout(usual)
    made.set_timeout(usual)
    return made


def exchange_number(occasion: str) -> int:
    """Count the calls for `occasion` since the process group was made, to give each exchange its own names.

    All ranks call in the same order, and a process that replaces a dead one in a new group begins with the
    same number as the others.
    """
    from torch.distributed import distributed_c10d

    global _counted
    with _making:
        store = distributed_c10d._get_default_store() if distributed_c10d.is_initialized() else None
        before, numbers = _counted
        if (None if before is None else before()) is not store:
            numbers = defaultdict(itertools.count)
            _counted = None if store is None else weakref.ref(store), numbers
        return next(numbers[occasion])


def open_own_store() -> None:
    """Make the second connection now. RuntimeError if the store is gone, or silent."""
    own_store().open(2 * _CONNECT_SECONDS + _PAUSES_SECONDS)


def forget_own_store() -> None:
    """Close the second connection, with the group: it keeps the store, which listens on rank 0."""
    with _making:
        _close_own()


def _close_own() -> None:
    global _own
    if _own is not None:
        _own[1].close()
    _own = None


def is_one_machine(local_world_size: int, world_size: int, environ: Mapping[str, str] | None = None) -> bool:
    """True if all ranks share this machine, and nobody else made a store for them, as torchrun does."""
    env = os.environ if environ is None else environ
    if serves_store(env) or local_world_size != world_size:
        return False
    # Without LOCAL_WORLD_SIZE the number of ranks here is a guess.
    told = "LOCAL_WORLD_SIZE" in env or "RANK" not in env
    return told or env.get("MASTER_ADDR") in (None, "localhost", LOOPBACK)


@functools.cache
def machine() -> str:
    """Name the running kernel, whose device numbers tell files apart; host names may be equal."""
    return _BOOT.read_text().strip() if _BOOT.exists() else socket.gethostname()
