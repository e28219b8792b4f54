"""The identity of the torchrun job that started the ranks, and may restart them (`--max-restarts`)."""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Mapping
from pathlib import Path

from fastsft.ranks.process_group import gather_objects

_RUN_ID, _ERROR_FILE = "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE"
_ATTEMPT = "TORCHELASTIC_RESTART_COUNT"


def own_start(environ: Mapping[str, str] | None = None) -> tuple[str, str] | None:
    """Return the ids of this rank's torchrun process and of its present start; None without torchrun.

    The torchrun process is identified by its unique log folder, the part of its ERROR_FILE path
    (.../<run id>_<random>/attempt_N/<rank>/error.json) before attempt_N. The run id is not unique: it is
    "none" unless the user chose one. A start is identified by attempt number and session id, because torchrun
    does not count restarts that another machine caused as attempts.
    """
    env = os.environ if environ is None else environ
    path = env.get(_ERROR_FILE)
    if _RUN_ID not in env or not path or len(Path(path).parents) <= 2:
        return None
    name = f"{socket.gethostname()}\0{Path(path).parents[2]}\0{env[_RUN_ID]}"
    agent = hashlib.sha256(name.encode(errors="surrogateescape")).hexdigest()[:16]
    return agent, f"{env.get(_ATTEMPT, '0')}-{os.getsid(0)}"


def starts_of_job() -> dict[str, str]:
    """Return, by torchrun process id, the start id of the process's lowest rank. Collective."""
    starts = [start for start in gather_objects(own_start()) if start is not None]
    return dict(reversed(starts))


def is_restart(before: Mapping[str, str], now: Mapping[str, str]) -> bool:
    """True if `now` and `before`, both from `starts_of_job`, are different starts of the same job.

    A job continues while any of its torchrun processes lives, so a single common process is enough.
    """
    common = before.keys() & now.keys()
    return bool(common) and all(before[agent] != now[agent] for agent in common)
