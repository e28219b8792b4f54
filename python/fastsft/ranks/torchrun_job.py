"""The torchrun job of the ranks, which starts them again after a failure (`--max-restarts`)."""

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
    """Name the torchrun process that started this rank, and the start; None without torchrun.

    The log folder identifies the process, because it alone has it (.../<run id>_<random>/attempt_N/<rank>/
    error.json); the run's id is "none" if nobody chose one. The number of the attempt does not count starts
    because of another machine, but each start has sessions of its own.
    """
    env = os.environ if environ is None else environ
    path = env.get(_ERROR_FILE)
    if _RUN_ID not in env or not path or len(Path(path).parents) <= 2:
        return None
    name = f"{socket.gethostname()}\0{Path(path).parents[2]}\0{env[_RUN_ID]}"
    agent = hashlib.sha256(name.encode(errors="surrogateescape")).hexdigest()[:16]
    return agent, f"{env.get(_ATTEMPT, '0')}-{os.getsid(0)}"


def starts_of_job() -> dict[str, str]:
    """Return the torchrun processes of all ranks, each with the start of its first rank. Collective."""
    starts = [start for start in gather_objects(own_start()) if start is not None]
    return dict(reversed(starts))


def is_restart(before: Mapping[str, str], now: Mapping[str, str]) -> bool:
    """True if the ranks `now` are of the same job as the ranks `before`, and were started after them.

    A job goes on while any of its torchrun processes lives.
    """
    common = before.keys() & now.keys()
    return bool(common) and all(before[agent] != now[agent] for agent in common)
