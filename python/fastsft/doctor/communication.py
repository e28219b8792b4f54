"""Tests whether the ranks of a run can communicate, and how fast.

Run as a program, this file is one rank of the test.
"""

from __future__ import annotations

import importlib
import json
import signal
import sys
import time
from pathlib import Path
from typing import Any

from fastsft.doctor.check import ExaminedRun, ProblemError
from fastsft.planning.devices import size_text
from fastsft.program.rank_failure import last_words
from fastsft.program.rank_processes import Rank, Ranks
from fastsft.ranks.process_group import join, leave
from fastsft.runtime.launch import launch

DEADLINE_SECONDS = 30.0
_WAY_OUT = (
    "look at GLOO_SOCKET_IFNAME, a firewall, free memory, or with GPUs at NCCL_DEBUG=INFO; then try again"
)


def check_communication(run: ExaminedRun) -> str:
    """Test communication among the launcher's ranks, or among new processes if there is no launcher."""
    device = "cpu" if run.args is None else str(run.args.device)
    if run.ranks == 1:
        return "one rank: none is needed"
    if launch().world_size == 1:
        return _text(run.ranks, device, started_ranks(run.ranks, device.split(":")[0], DEADLINE_SECONDS))
    try:
        return _text(run.ranks, device, exchange(device, DEADLINE_SECONDS))
    finally:
        leave()


def started_ranks(count: int, device: str, seconds: float) -> dict[str, float]:
    """Start `count` ranks that communicate, end them, and return the slowest rank's measurement.

    ProblemError names the rank that failed first, or the ranks that did not finish within `seconds`.
    """
    job = {"arguments": [device, f"{seconds:g}"], "script": str(Path(__file__))}
    end = time.monotonic() + seconds
    with Ranks(job, count, {}, is_silent=True) as ranks:
        while not ranks.watch() and not ranks.failed and time.monotonic() < end:
            time.sleep(0.05)
        late = [rank for rank in ranks.ranks if rank.process.poll() is None]
        ranks.end(signal.SIGKILL)
    _complain(ranks.failed, late, count, seconds)
    return max((_measured(rank) for rank in ranks.ranks), key=lambda measured: measured["seconds"])


def _complain(failed: list[Rank], late: list[Rank], count: int, seconds: float) -> None:
    if failed:
        rank = failed[0]
        output = last_words(list(rank.lines)) or "nothing"
        raise ProblemError(
            f"rank {rank.number} of {count} left with status {rank.process.returncode}; it said: "
            f"{output.splitlines()[-1]}",
            _WAY_OUT,
        )
    if late:
        absent = [rank for rank in late if CAME not in rank.lines]
        names = ", ".join(str(rank.number) for rank in absent or late)
        problem = "did not start" if absent else "did not finish the exchange"
        raise ProblemError(f"of {count} ranks, {names} {problem} within {seconds:g} s", _WAY_OUT)


def _measured(rank: Rank) -> dict[str, float]:
    for line in rank.lines:
        if line.startswith(DONE):
            measured: dict[str, float] = json.loads(line.removeprefix(DONE))
            return measured
    raise ProblemError(f"rank {rank.number} ended without a result", "try again")


def _text(ranks: int, device: str, measured: dict[str, float]) -> str:
    rate = size_text(measured["bytes"] / measured["seconds"])
    backend = "gloo" if device == "cpu" else "NCCL"
    total = size_text(measured["bytes"])
    return f"{ranks} ranks met over {backend}; an all_reduce of {total} is right, {rate}/s"


_BYTES = 1 << 24
_ROUNDS = 3
CAME, DONE = "came", "exchanged "


def exchange(device: str, seconds: float) -> dict[str, float]:
    """Measure an all-reduce with known values; return its `bytes` and its `seconds`. Collective.

    RuntimeError if ranks do not arrive within `seconds`, or if the sum is wrong.
    """
    import torch
    import torch.distributed as dist

    c10d: Any = importlib.import_module("torch.distributed.distributed_c10d")

    if device != "cpu":
        torch.cuda.set_device(device)
    groups, place = join(seconds, device), launch()
    group = c10d._resolve_process_group(groups.reduce)
    values = torch.empty(_BYTES // 4, device=device)
    expected = place.world_size * (place.world_size + 1) / 2
    best = float("inf")
    for _ in range(_ROUNDS):
        values.fill_(place.rank + 1.0)
        started = time.monotonic()
        dist.all_reduce(values, group=group)
        lowest, highest = float(values.min()), float(values.max())  # reading the values waits for the GPU
        best = min(best, time.monotonic() - started)
        if (lowest, highest) != (expected, expected):
            raise RuntimeError(
                f"rank {place.rank}: an all_reduce of 1 to {place.world_size} gave {lowest} to {highest}, "
                f"expected {expected}"
            )
    return {"bytes": float(_BYTES), "seconds": best}


def main() -> None:
    """Take part in the test as a rank.

    Command-line arguments: the device type ("cpu" or "cuda"), and the seconds within which all ranks must
    arrive.
    """
    print(CAME, flush=True)
    device = sys.argv[1] if sys.argv[1] == "cpu" else f"cuda:{launch().local_rank}"
    print(DONE + json.dumps(exchange(device, float(sys.argv[2]))), flush=True)


if __name__ == "__main__":
    main()
