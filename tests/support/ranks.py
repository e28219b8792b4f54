"""Runs a function on several gloo ranks and brings back what each returned.

The ranks are forked from a process of their own (rank_program.py), never from the one that runs the tests:
that one has threads, and a lock that one of them holds at a fork is held in the child for ever.
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
    """The process that ranks are forked from."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("rank_program.py"))],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def ask(self, order: dict[str, Any]) -> list[int | None]:
        """The statuses of the ranks; None for one that was still running at the deadline, and was killed."""
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
    launched: bool = False,
    seconds: float = SECONDS,
) -> list[Any]:
    """function(groups, *args) on every rank, `groups` being Engine's group names ("" alone).

    function: of a module, which is imported once more where ranks run. One rank runs in this process.
    node_size: ranks of a node, with groups of their own; 0: all are one node. launched: ranks have torchrun's
    variables, as a Trainer needs them, whose `launcher.join` takes the group that is there. RuntimeError with
    what every rank said when one fails, and with the stacks of those that still run after `seconds`.
    """
    if world_size == 1:
        return [function({"gather_group": "", "reduce_group": ""}, *args)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "args.pickle").write_bytes(pickle.dumps(args))
        order = {
            "module": function.__module__, "file": inspect.getfile(function),
            "function": function.__qualname__, "folder": name, "seconds": seconds,
            "world_size": world_size, "node_size": node_size, "launched": launched,
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
