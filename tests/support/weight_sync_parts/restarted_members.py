"""Trainers and receivers that sync for ever, and rebuild their groups whenever a sync fails.

The program forks a member for each line of JSON on its input and answers with the process: those are killed
at any time, and started again. Each member appends a line to a log of its own for every sync.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from fastsft.weight_sync import WeightGroup, WeightReceiver, fsdp_sync_weight_nccl, sync_plan

T = TypeVar("T")
SHAPES = [[1], [64, 33], [7], [0, 4], [129, 16], [300]]
BUCKET_BYTES = 4096


def value(seed: int, number: int) -> torch.Tensor:
    """The tensor `number` of the version that was made with `seed`, in float32, exactly."""
    size = int(torch.tensor(SHAPES[number]).prod())
    return ((torch.arange(size) * 7 + number * 13 + seed) % 8191).to(torch.float32).view(SHAPES[number])


class Model(torch.nn.Module):
    """Weights of one version; the first says which."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = torch.nn.ParameterList([torch.zeros(shape) for shape in SHAPES])

    def fill(self, seed: int) -> None:
        with torch.no_grad():
            for number, weight in enumerate(self.weights):
                weight.copy_(torch.tensor([float(seed)]) if number == 0 else value(seed, number))


class Engine:
    """An engine around a module alone."""

    def __init__(self) -> None:
        self.module = Model()


def _store(order: dict[str, Any], prefix: str) -> Any:
    store = dist.TCPStore("127.0.0.1", order["port"], None, False, wait_for_workers=False)
    return dist.PrefixStore(prefix, store)


def _group(order: dict[str, Any], root: int, rank: int) -> WeightGroup:
    while True:
        try:
            return WeightGroup(
                _store(order, f"root-{root}"), rank, order["members"],
                timeout_s=order["timeout_s"],
            )  # fmt: skip
        except RuntimeError as error:
            _log(order, {"failed": str(error)})


def _log(order: dict[str, Any], entry: dict[str, Any]) -> None:
    with open(order["log"], "a") as file:
        file.write(json.dumps(entry) + "\n")


def _for_ever(order: dict[str, Any], groups: list[WeightGroup], sync: Callable[[], dict[str, Any]]) -> None:
    while True:
        try:
            _log(order, {**sync(), "generation": groups[0].generation})
        except RuntimeError as error:
            _log(order, {"failed": str(error)})
            _together([functools.partial(_rebuild, order, group) for group in groups])


def _together(works: list[Callable[[], T]]) -> list[T]:
    """Each on a thread: groups that are made one after another may wait for each other in a circle."""
    with ThreadPoolExecutor(len(works)) as threads:
        return [future.result() for future in [threads.submit(work) for work in works]]


def _rebuild(order: dict[str, Any], group: WeightGroup) -> None:
    while True:
        try:
            return group.rebuild()
        except RuntimeError as error:
            _log(order, {"failed": str(error)})


def trainer(order: dict[str, Any]) -> None:
    """Rank `rank` of `ranks`, which have one model."""
    engine, rank = Engine(), order["rank"]
    if order["ranks"] > 1:
        dist.init_process_group(
            "gloo", store=_store(order, f"trainer-{order['start']}"), rank=rank, world_size=order["ranks"],
            timeout=timedelta(seconds=order["timeout_s"]),
        )  # fmt: skip
    group, tries = _group(order, rank, 0), 0

    def sync() -> dict[str, Any]:
        nonlocal tries
        tries += 1
        seed = order["start"] * 1000 + tries % 1000
        engine.module.fill(seed)
        version = fsdp_sync_weight_nccl(
            engine, group, mode=order["mode"], deadline_s=order["deadline_s"], bucket_bytes=BUCKET_BYTES
        )
        return {"version": version, "seed": seed}

    _for_ever(order, [group], sync)


def receiver(order: dict[str, Any]) -> None:
    """Compares everything that it loads with what the seed says."""
    plan = sync_plan(Engine())
    groups = _together([
        functools.partial(_group, order, root, order["rank"]) for root in range(order["ranks"])
    ])  # fmt: skip
    loaded: dict[str, torch.Tensor] = {}
    one_of_each = groups if order["mode"] == "native_multiroot" else groups[0]
    made = WeightReceiver(
        one_of_each, plan, lambda tensors: loaded.update({n: t.clone() for n, t in tensors}),
        mode=order["mode"], deadline_s=order["deadline_s"], bucket_bytes=BUCKET_BYTES,
    )  # fmt: skip

    def sync() -> dict[str, Any]:
        loaded.clear()
        version = made.receive()
        assert list(loaded) and sorted(loaded) == sorted(plan.names), sorted(loaded)
        tensors = [loaded[f"weights.{number}"] for number in range(len(SHAPES))]
        seed = int(tensors[0])
        wrong = [n for n, tensor in enumerate(tensors) if n and not torch.equal(tensor, value(seed, n))]
        return {"version": version, "seed": seed, "wrong": wrong}

    _for_ever(order, groups, sync)


def main() -> None:
    for line in sys.stdin:
        order = json.loads(line)
        child = os.fork()
        if child == 0:
            try:
                os.close(0)
                {"trainer": trainer, "receiver": receiver}[order["role"]](order)
            except BaseException as error:
                _log(order, {"died": f"{type(error).__name__}: {error}"})
            os._exit(1)
        print(child, flush=True)


class Members:
    """The members of one job, from the side that starts and kills them."""

    def __init__(self, folder: Path, mode: str, receivers: int = 2) -> None:
        self.folder, self.receivers = folder, receivers
        self.ranks = 2 if mode == "native_multiroot" else 1
        self._server = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
        self._order = {
            "port": self._server.port, "mode": mode, "members": receivers + 1,
            "ranks": self.ranks, "timeout_s": 60.0, "deadline_s": 10.0,
        }  # fmt: skip
        support = Path(__file__).parents[1]
        self._program = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(support), *filter(None, sys.path)])},
        )  # fmt: skip
        self._pids: dict[str, int] = {}
        self._starts = 0

    @property
    def names(self) -> list[str]:
        return ["trainer", *[f"receiver-{rank}" for rank in range(1, self.receivers + 1)]]

    def start(self, name: str) -> None:
        """A trainer with all its ranks, or a receiver."""
        self._starts += 1
        role, _, number = name.partition("-")
        ranks = range(self.ranks) if role == "trainer" else [int(number)]
        for rank in ranks:
            process = f"{name}.{rank}"
            order = {**self._order, "role": role, "rank": rank, "start": self._starts,
                     "log": str(self._log(process))}  # fmt: skip
            assert self._program.stdin and self._program.stdout
            print(json.dumps(order), file=self._program.stdin, flush=True)
            self._pids[process] = int(self._program.stdout.readline())

    def kill(self, name: str) -> None:
        """Of a trainer all ranks: without one of them it has ended."""
        for process in [each for each in self._pids if each.rpartition(".")[0] == name]:
            os.kill(self._pids.pop(process), 9)

    def entries(self) -> dict[str, list[dict[str, Any]]]:
        """Of each process under its name, what it has logged, in order."""
        return {
            path.stem: [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
            for path in sorted(self.folder.glob("*.log"))
        }

    def wait_for_syncs(self, count: int, limit_s: float) -> dict[str, list[dict[str, Any]]]:
        """Until every process has logged `count` syncs in a row from now on: of each its last ones."""
        before = {name: len(entries) for name, entries in self.entries().items()}
        end = time.monotonic() + limit_s
        while True:
            tails = {name: self._tail(e[before.get(name, 0) :]) for name, e in self.entries().items()}
            if len(tails) == len(self._pids) and all(len(tail) >= count for tail in tails.values()):
                return {name: tail[-count:] for name, tail in tails.items()}
            assert time.monotonic() < end, {name: e[-3:] for name, e in self.entries().items()}
            time.sleep(0.05)

    def close(self) -> None:
        for name in self.names:
            self.kill(name)
        assert self._program.stdin
        self._program.stdin.close()
        self._program.wait(timeout=60)

    def _log(self, process: str) -> Path:
        return self.folder / f"{process}.log"

    @staticmethod
    def _tail(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
        last = max((n for n, entry in enumerate(entries) if "version" not in entry), default=-1)
        return entries[last + 1 :]


@contextmanager
def members(folder: Path, mode: str) -> Iterator[Members]:
    """All of them, started."""
    made = Members(folder, mode)
    try:
        for name in made.names:
            made.start(name)
        yield made
    finally:
        made.close()


if __name__ == "__main__":
    import signal

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the killed ones
    main()
