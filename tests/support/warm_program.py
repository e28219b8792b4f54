"""A process that has imported everything and forks ranks of `fastsft.train`: a start costs no imports.

Reads a JSON object a line from stdin and answers with one on stdout. {"start": {...}} forks ranks and answers
with their process ids; {"wait": [pids], "timeout": seconds} answers with their statuses, null for those that
still run; {"import": [names]} imports modules for later ranks. What a rank prints goes into files. `fault`
names a function of injected_faults.py, which is called in every rank with its number before the run: how
tests put faults where no flag of the product reaches.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy.random  # noqa: F401
import torch

import fastsft.train
import injected_faults
from fastsft import (
    _C,  # noqa: F401
)
from fastsft.program.main import run_script
from fastsft.trainer import signals  # noqa: F401
from forked_programs import leave
from read_sources import read_sources

# Slow to import, and drawn with at every save where it is installed.
with contextlib.suppress(ImportError):
    import matplotlib.backends.backend_agg
    import matplotlib.figure
    import matplotlib.font_manager  # noqa: F401


def run_rank(rank: int, order: dict[str, Any]) -> None:
    """In a forked child: what `python -m fastsft.train` does after its imports."""
    os.setsid()
    for number, name in ((1, "out"), (2, "err")):
        file = os.open(Path(order["logs"]) / f"rank-{rank}.{name}", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        os.dup2(file, number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    place = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": order["ranks"],
        "LOCAL_WORLD_SIZE": order["ranks"],
    }
    place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": order["port"]} | order["environment"]
    if order["ranks"] > 1:
        os.environ |= {name: str(value) for name, value in place.items()}
    os.chdir(order["folder"])
    sys.argv = ["train.py", *order["words"]]
    torch.set_num_threads(1)
    if order["fault"]:
        name, *arguments = order["fault"]
        getattr(injected_faults, name)(rank, *arguments)
    run_script(fastsft.train.train)


def start(order: dict[str, Any]) -> list[int]:
    pids = []
    for rank in range(order["ranks"]):
        pid = os.fork()
        if pid == 0:
            try:
                run_rank(rank, order)
            except SystemExit as error:
                leave(error.code)
            except BaseException:
                import traceback

                traceback.print_exc()
                leave(1)
            leave(0)
        pids.append(pid)
    return pids


def wait(pids: list[int], timeout: float) -> list[int | None]:
    """Statuses as subprocess gives them: -9 for SIGKILL."""
    statuses: dict[int, int] = {}
    deadline = time.monotonic() + timeout
    while len(statuses) < len(pids):
        for pid in pids:
            if pid not in statuses:
                found, status = os.waitpid(pid, os.WNOHANG)
                if found:
                    statuses[pid] = os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            break
        time.sleep(0.01)
    return [statuses.get(pid) for pid in pids]


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    read_sources()
    gc.freeze()  # a rank that ends would look at all that was imported, and copy its pages
    print(json.dumps("ready"), file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        answer: Any = "imported"
        if "start" in request:
            answer = start(request["start"])
        elif "wait" in request:
            answer = wait(request["wait"], request["timeout"])
        for name in request.get("import", ()):
            importlib.import_module(name)
        if "import" in request:
            read_sources()
            gc.freeze()
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
