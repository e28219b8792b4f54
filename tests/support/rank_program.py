"""A process without threads that forks gloo ranks, each of which calls one function of a test.

Reads a JSON object a line from stdin, runs the ranks it asks for and answers with their statuses, null for
those that still ran at the deadline: they print the stacks of their threads and are killed. `ranks.py` is
the other end; results are left in the order's folder.
"""

from __future__ import annotations

import datetime
import faulthandler
import gc
import importlib
import importlib.util
import json
import os
import pickle
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from fastsft import _C  # noqa: F401


def function_of(order: dict[str, Any]) -> Callable[..., Any]:
    """Of a module that a test runner may have loaded under a name that no search path finds."""
    name = order["module"]
    if name == "__main__":
        name = Path(order["file"]).stem
    module = sys.modules.get(name)
    if module is None:
        spec = importlib.util.spec_from_file_location(name, order["file"])
        assert spec and spec.loader, order["file"]
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    if order["launched"]:  # for a Trainer; else every rank of every test imports and reads the same files
        if "transformers" in sys.modules:
            importlib.import_module("transformers.trainer")
        importlib.import_module("read_sources").read_sources()
        importlib.import_module("fastsft.reporting.loss_reports").has_matplotlib = lambda: False
    function: Callable[..., Any] = getattr(module, order["function"])
    return function


def groups(rank: int, world_size: int, node_size: int, context_size: int) -> dict[str, str]:
    def consecutive(size: int) -> list[list[int]]:
        return [list(range(first, first + size)) for first in range(0, world_size, size)]

    names = {"gather_group": dist.new_group().group_name, "reduce_group": dist.new_group().group_name}
    kinds = {}
    if node_size:
        across = [list(range(place, world_size, node_size)) for place in range(node_size)]
        node = consecutive(node_size)
        kinds = {"node_gather_group": node, "node_reduce_group": node, "across_group": across}
    if context_size > 1:
        kinds["context_group"] = consecutive(context_size)
    for name, kind in kinds.items():
        for ranks in kind:
            group = dist.new_group(ranks)
            if rank in ranks:
                names[name] = group.group_name
    return names


def run_rank(rank: int, order: dict[str, Any], function: Callable[..., Any]) -> None:
    """In a forked child."""
    folder, world_size = order["folder"], order["world_size"]
    log = os.open(f"{folder}/{rank}.log", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    for number in (1, 2):
        os.dup2(log, number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    faulthandler.enable()  # stacks at a crash, and at the deadline's SIGABRT
    if order["launched"]:
        names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
        os.environ |= zip(names, map(str, (rank, rank, world_size, world_size)), strict=True)
    torch.set_num_threads(1)
    timeout = datetime.timedelta(seconds=120)
    store = dist.FileStore(f"{folder}/store", world_size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size, timeout=timeout)
    try:
        args = pickle.loads(Path(folder, "args.pickle").read_bytes())
        result: Any = function(groups(rank, world_size, order["node_size"], order["context_size"]), *args)
    except Exception:
        result = RuntimeError(f"rank {rank}:\n{traceback.format_exc()}")
    Path(folder, f"{rank}.pickle").write_bytes(pickle.dumps(result))
    dist.destroy_process_group()


def fork(rank: int, order: dict[str, Any], function: Callable[..., Any]) -> int:
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        run_rank(rank, order, function)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def statuses(children: list[int], seconds: float) -> list[int | None]:
    found: dict[int, int] = {}
    deadline = time.monotonic() + seconds

    def collect() -> None:
        for child in children:
            if child not in found:
                ended, status = os.waitpid(child, os.WNOHANG)
                if ended:
                    found[child] = os.waitstatus_to_exitcode(status)

    while len(found) < len(children) and time.monotonic() < deadline:
        collect()
        time.sleep(0.002)
    late = [child for child in children if child not in found]
    for number in (signal.SIGABRT, signal.SIGKILL):
        for child in late:
            os.kill(child, number)
        time.sleep(1 if late and number == signal.SIGABRT else 0)
    for child in late:
        os.waitpid(child, 0)
    return [found.get(child) for child in children]


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        order = json.loads(line)
        os.environ.clear()
        os.environ.update(order["environment"])
        sys.path[:] = order["path"]
        os.chdir(order["directory"])
        function = function_of(order)
        gc.freeze()  # each collection of a rank would look at all that was imported, and copy its pages
        children = [fork(rank, order, function) for rank in range(order["world_size"])]
        print(json.dumps(statuses(children, order["seconds"])), file=answers, flush=True)


if __name__ == "__main__":
    main()
