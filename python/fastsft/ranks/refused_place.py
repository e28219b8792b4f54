"""Word of a process whose own variables make no sense, left for the ranks that wait for it."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from fastsft.ranks.store import LOOPBACK, visitors_store
from fastsft.runtime.launch import meeting_place, run_names

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

_LIMIT_S, _PROBE_S, _PAUSE_S = 15.0, 2.0, 0.2


def tell_waiting_ranks(reason: str, meeting: str, environ: Mapping[str, str] | None = None) -> None:
    """Leave word at the store where the ranks meet, so that none of them waits until --ddp_timeout.

    meeting: its name, the first part of its keys. As far as possible, for 15 seconds: whoever serves the
    store may still be starting.
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
    thread = threading.Thread(target=_tell, args=(host, port, _key(meeting), word, end), daemon=True)
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
        time.sleep(_PAUSE_S)


def word_of_refused(store: Store, meeting: str, environ: Mapping[str, str] | None = None) -> str | None:
    """Return the word of a refused process of this run; None without one, or if it is of another run."""
    if not store.check([_key(meeting)]):
        return None
    found = json.loads(store.get(_key(meeting)))
    own = run_names(os.environ if environ is None else environ)
    is_other = any(own.get(name, value) != value for name, value in found["run"].items())
    return None if is_other else str(found["told"])


def _key(meeting: str) -> str:
    return f"{meeting}/refused"


def _is_own(host: str) -> bool:
    """An address of this machine: the store of ranks that share a machine listens at its loopback only."""
    with contextlib.suppress(OSError):
        socket.create_server((host, 0)).close()
        return True
    return False
