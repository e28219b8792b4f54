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
    """Return ids of the torchrun process that started this rank, and of the start; None without torchrun.

    The process is identified by its log folder (.../<run id>_<random>/attempt_N/<rank>/error.json), which no
    other process has; the run id alone is "none" unless the user chose one. The start is identified by
    attempt and session id, because torchrun does not count restarts that another machine caused as attempts.
    """
    env = os.environ if environ is None else environ
    path = env.get(_ERROR_FILE)
    if _RUN_ID not in env or not path or len(Path(path).parents) <= 2:
        return None
    name = f"{socket.gethostname()}\0{Path(path).parents[2]}\0{env[_RUN_ID]}"
    agent = hashlib.sha256(name.encode(errors="surrogateescape")).hexdigest()[:16]
    return agent, f"{env.get(_ATTEMPT, '0')}-{os.getsid(0)}"


def starts_of_job() -> dict[str, str]:
    """Return the id of each torchrun process, with the start of its lowest rank. Collective."""
    starts = [start for start in gather_objects(own_start()) if start is not None]
    return dict(reversed(starts))


def is_restart(before: Mapping[str, str], now: Mapping[str, str]) -> bool:
    """True if `now` and `before`, from `starts_of_job`, are different starts of one job.

    A job continues while any of its torchrun processes lives, so one common process is enough.
    """
    common = before.keys() & now.keys()
    return bool(common) and all(before[agent] != now[agent] for agent in common)
