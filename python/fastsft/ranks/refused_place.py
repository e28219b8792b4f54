"""A process whose own variables make no sense tells the ranks that wait for it."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Mapping

from fastsft.ranks.roll_call import meeting_name
from fastsft.ranks.store import visitors_store

_LIMIT_S, _PROBE_S, _PAUSE_S = 15.0, 2.0, 0.2


def tell_waiting_ranks(reason: str, environ: Mapping[str, str] | None = None) -> None:
    """Leave word at the store of MASTER_ADDR and MASTER_PORT, so that no rank waits until --ddp_timeout.

    As far as possible, for 15 seconds: whoever serves the store may still be starting.
    """
    env = os.environ if environ is None else environ
    host, port = env.get("MASTER_ADDR", ""), env.get("MASTER_PORT", "")
    if not host or not (port.isascii() and port.isdigit()) or not 0 < int(port) < 65536:
        return
    told = f"process {os.getpid()} on {socket.gethostname()} was started for this run and left: {reason}"
    end = time.monotonic() + _LIMIT_S
    while time.monotonic() < end:
        for address in (host, "127.0.0.1"):  # where the store of one machine listens
            with contextlib.suppress(OSError, ValueError, RuntimeError):
                socket.create_connection((address, int(port)), _PROBE_S).close()
                visitors_store(address, int(port), 1).set(
                    f"{meeting_name(0)}/differs", json.dumps({"told": told})
                )
                return
        time.sleep(_PAUSE_S)
