"""The stores at which ranks meet, and each process's second connection to the store of its process group."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import socket
import sys
import threading
import time
import weakref
from collections import defaultdict
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastsft.ranks.timed_store import BoundedStore
from fastsft.runtime.launch import meeting_place, run_names

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

LOOPBACK = "127.0.0.1"
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"  # "True": torchrun serves the store
_CONNECT_SECONDS, _PAUSES_SECONDS = 10.0, 5.0  # limits of each of torch's two attempts, and of their pauses
_own: tuple[Store, BoundedStore] | None = None  # torch's default store, and the second connection to it
_counted: tuple[weakref.ref[Store] | None, defaultdict[str, itertools.count[int]]] = (
    None,
    defaultdict(itertools.count),
)
_making = threading.Lock()


class HeldPort:
    """A free port of this machine for MASTER_PORT, reserved until `close`.

    A socket is bound to the port and never listens. The kernel therefore gives the port to no program that
    asks for any free port. Rank 0 can still listen on it, because both sockets set SO_REUSEADDR. Without the
    bound socket, another program could get the port before rank 0 uses it.
    """

    def __init__(self) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind((LOOPBACK, 0))
        self.number = int(self._socket.getsockname()[1])

    def close(self) -> None:
        """Release the port. To be called after the ranks have met or ended; a second call does nothing."""
        self._socket.close()


def loopback_store(rank: int, world_size: int, timeout: timedelta, port: int) -> Store:
    """Make a TCPStore that rank 0 serves on 127.0.0.1 only; by default torch listens on all interfaces.

    RuntimeError if the port is in use, or if rank 0 does not serve the store within the timeout.
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
    """True if the launcher serves the ranks' store, as torchrun does."""
    return env.get(_AGENT_STORE) == "True"


def meeting_store(rank: int, world_size: int, timeout: timedelta, *, here: bool) -> Store:
    """Connect to the store at MASTER_ADDR and MASTER_PORT, which torchrun or rank 0 serves.

    here: True if all ranks share this machine (`loopback_store`). Waits for the server, but not for other
    ranks.
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
    """Prefix the keys with torchrun's attempt number, as torch's rendezvous does.

    torchrun's store outlives a restart of the ranks, and restarted ranks must not read an earlier attempt's
    keys.
    """
    if not serves_store(os.environ):
        return store
    from torch.distributed import PrefixStore  # type: ignore[attr-defined]

    return PrefixStore(f"/worker/attempt_{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)


def visitors_store(host: str, port: int, world_size: int) -> Store:
    """Connect to the store at an address as a client. RuntimeError, within seconds, if nobody serves it."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    timeout = timedelta(seconds=_PAUSES_SECONDS)
    return _of_attempt(
        TCPStore(host, port, world_size, is_master=False, timeout=timeout, wait_for_workers=False)
    )


def own_store() -> BoundedStore:
    """Return this process's second connection to the process group's store, for background threads.

    A blocking call on the first connection would keep all other threads out. Calls on the second connection
    must therefore be quick. Each call waits up to the limit that its caller gives, by default the timeout of
    a collective. The connection is opened once: when `meet` makes the process group, or at the first call if
    another program made the group.
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
    """Clone the store. A short timeout applies while connecting, so that a lost rank 0 is noticed soon."""
    default.set_timeout(timedelta(seconds=_CONNECT_SECONDS))
    try:
        made: Store = default.clone()  # type: ignore[attr-defined]  # torch's stub has none
    finally:
        default.set_timeout(usual)
    made.set_timeout(usual)
    return made


def exchange_number(occasion: str) -> int:
    """Return how many earlier calls for `occasion` there were with this process group, for unique key names.

    All ranks must call this in the same order. Counts restart with each process group, so that a process that
    replaces a dead rank has the same numbers as the other ranks.
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
    """Open the second connection now. RuntimeError if the store is gone or does not answer."""
    own_store().open(2 * _CONNECT_SECONDS + _PAUSES_SECONDS)


def forget_own_store() -> None:
    """Close the second connection, which would keep the store alive, and on rank 0 its listening port."""
    with _making:
        _close_own()


def _close_own() -> None:
    global _own
    if _own is not None:
        _own[1].close()
    _own = None


def is_one_machine(local_world_size: int, world_size: int, environ: Mapping[str, str] | None = None) -> bool:
    """True if all ranks share this machine, and no launcher such as torchrun serves their store."""
    env = os.environ if environ is None else environ
    if serves_store(env) or local_world_size != world_size:
        return False
    # Without LOCAL_WORLD_SIZE, local_world_size is a guess, so MASTER_ADDR must confirm it.
    told = "LOCAL_WORLD_SIZE" in env or "RANK" not in env
    return told or env.get("MASTER_ADDR") in (None, "localhost", LOOPBACK)


_LEAVING, _LEAVING_S, _LEAVING_PAUSE_S = "fastsft/leaving", 1.0, 0.01


def wait_for_leaving_ranks() -> None:
    """Wait until all ranks have called this function, for about a second. A rank that fails calls it last.

    If all ranks find the same error after an exchange, the first to end would close sockets of the exchange
    that a slower rank still reads, and on rank 0 the store. The slower rank would then report a lost rank
    instead of the error.
    """
    if "torch.distributed" not in sys.modules:
        return
    from torch.distributed import get_rank, get_world_size, is_initialized

    if not is_initialized():
        return
    end, ranks = time.monotonic() + _LEAVING_S, get_world_size()

    def count(amount: int) -> int:
        return store.run(lambda raw: int(raw.add(_LEAVING, amount)), _LEAVING_S)

    with contextlib.suppress(RuntimeError):  # if the store has gone, another rank has ended
        store = own_store()
        count(1)
        for counted in (ranks, 2 * ranks) if get_rank() == 0 else (ranks,):
            while count(0) < counted:
                if time.monotonic() > end:
                    return
                time.sleep(_LEAVING_PAUSE_S)
            count(1)  # rank 0, which may serve the store, ends after the last call of every rank


@functools.cache
def machine() -> str:
    """Return this machine's boot id, which is unique, unlike a host name; the host name if there is none."""
    return _BOOT.read_text().strip() if _BOOT.exists() else socket.gethostname()


_LIMIT_S, _TELL_PAUSE_S = 15.0, 0.2  # time limit and pause while an exiting process reports its reason
_PROBE_S = 2.0


def tell_waiting_ranks(reason: str, meeting: str) -> None:
    """Report to waiting ranks that this process exits because its environment variables are inconsistent.

    Without this report the ranks would wait until --ddp_timeout. reason: the error message. meeting: prefix
    of the rendezvous keys. The report is tried for 15 seconds, because the process that serves the store may
    still be starting.
    """
    if "MASTER_ADDR" not in os.environ and "SLURM_STEP_NUM_TASKS" not in os.environ:
        return  # a process without a launcher has no other ranks
    try:
        host, port = meeting_place(os.environ)
    except ValueError:
        return
    told = f"process {os.getpid()} on {socket.gethostname()} was started for this run and left: {reason}"
    word = json.dumps({"told": told, "run": run_names(os.environ)})
    end = time.monotonic() + _LIMIT_S
    # The thread is a daemon because torch's client waits without limit for a server that never answers.
    thread = threading.Thread(target=_tell, args=(host, port, f"{meeting}/refused", word, end), daemon=True)
    with contextlib.suppress(RuntimeError):  # raised if the system denies a thread
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


def word_of_refused(store: Store, meeting: str) -> str | None:
    """Return the report that a process of this run made with `tell_waiting_ranks`; None if there is none."""
    key = f"{meeting}/refused"
    if not store.check([key]):
        return None
    content = json.loads(store.get(key))
    own = run_names(os.environ)
    is_other = any(own.get(name, value) != value for name, value in content["run"].items())
    return None if is_other else str(content["told"])


def _is_own(host: str) -> bool:
    """True if `host` is an address of this machine; then the store may listen on loopback only."""
    with contextlib.suppress(OSError):
        socket.create_server((host, 0)).close()
        return True
    return False
