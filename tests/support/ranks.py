"""Runs a function on several gloo ranks and returns the results of all.

The ranks are forked from a separate process (rank_program.py), and not from the process of the tests. That
process has threads, and a lock that a thread holds at the fork would stay locked in the child for ever.
"""

from __future__ import annotations

import atexit
import inspect
import json
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

SECONDS = 240.0


class RankProgram:
    """The process from which ranks are forked."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("rank_program.py"))],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def ask(self, order: dict[str, Any]) -> list[int | None]:
        """Run the ranks of `order`; return their exit statuses, None for a rank killed at the deadline."""
        assert self._process.stdin and self._process.stdout
        print(json.dumps(order), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        assert line, "the process that forks ranks is gone"
        statuses: list[int | None] = json.loads(line)
        return statuses

    def close(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(timeout=30)


_programs: list[RankProgram] = []


def _program() -> RankProgram:
    if not _programs:
        _programs.append(RankProgram())
        atexit.register(_programs[0].close)
    return _programs[0]


def run_ranks(
    world_size: int,
    function: Callable[..., Any],
    *args: Any,
    node_size: int = 0,
    context_size: int = 1,
    launched: bool = False,
    seconds: float = SECONDS,
) -> list[Any]:
    """Call function(groups, *args) on every rank, and return the results by rank.

    groups: the group names for Engine; "" with one rank, which runs in this process. function: a function of
    a module, which the ranks import again. node_size: number of ranks of a node, which has its own groups; 0:
    all ranks are one node. context_size: number of ranks that share micro-batches, which have a group then.
    launched: set torchrun's environment variables, as a Trainer needs them; its
    `launcher.join` then uses the existing process group. RuntimeError if a rank fails, with the output of all
    ranks, and with the stacks of the ranks that still run after `seconds`.
    """
    if world_size == 1:
        return [function({"gather_group": "", "reduce_group": ""}, *args)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "args.pickle").write_bytes(pickle.dumps(args))
        order = {
            "module": function.__module__, "file": inspect.getfile(function),
            "function": function.__qualname__, "folder": name, "seconds": seconds,
            "world_size": world_size, "node_size": node_size, "context_size": context_size,
            "launched": launched,
            "environment": dict(os.environ), "path": sys.path, "directory": os.getcwd(),
        }  # fmt: skip
        statuses = _program().ask(order)
        if statuses != [0] * world_size:
            raise RuntimeError("\n".join(_said(folder, rank, status) for rank, status in enumerate(statuses)))
        results = [pickle.loads((folder / f"{rank}.pickle").read_bytes()) for rank in range(world_size)]
    failures = [str(result) for result in results if isinstance(result, Exception)]
    if failures:
        raise RuntimeError("\n".join(failures))
    return results


def _said(folder: Path, rank: int, status: int | None) -> str:
    text = (folder / f"{rank}.log").read_text(errors="replace")
    outcome = "was still running and has been killed" if status is None else f"ended with status {status}"
    return f"rank {rank} {outcome}:\n{text[-6000:]}"
