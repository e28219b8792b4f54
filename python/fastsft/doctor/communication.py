"""Test that the ranks that the run would have can talk to each other, and how fast."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

from fastsft.doctor.exchange import CAME, DONE, exchange
from fastsft.doctor.result import ProblemError
from fastsft.doctor.run import Run
from fastsft.planning.devices import size_text
from fastsft.program.rank_failure import last_words
from fastsft.program.rank_processes import Rank, Ranks
from fastsft.ranks.process_group import leave
from fastsft.runtime.launch import launch

DEADLINE_SECONDS = 30.0
_WAY_OUT = (
    "look at GLOO_SOCKET_IFNAME, a firewall, free memory, or with GPUs at NCCL_DEBUG=INFO; then try again"
)


def check_communication(run: Run) -> str:
    """Under a launcher all ranks are here and take part; else those that the run would start are started."""
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
    """Start `count` child processes that exchange; what the slowest one measured. None of them is left.

    ProblemError naming the rank that failed first, or those that did not come within `seconds`.
    """
    words = [device, f"{seconds:g}"]
    job = {"arguments": words, "script": str(Path(__file__).with_name("exchange.py"))}
    end = time.monotonic() + seconds
    with Ranks(job, count, {}, is_silent=True) as ranks:
        while not ranks.watch() and not ranks.failed and time.monotonic() < end:
            time.sleep(0.05)
        late = [rank for rank in ranks.ranks if rank.process.poll() is None]
        ranks.end(signal.SIGKILL)
    _complain(ranks.failed, late, count, seconds)
    return max((_measured(rank) for rank in ranks.ranks), key=lambda found: found["seconds"])


def _complain(failed: list[Rank], late: list[Rank], count: int, seconds: float) -> None:
    if failed:
        rank = failed[0]
        said = last_words(list(rank.lines)) or "nothing"
        raise ProblemError(
            f"rank {rank.number} of {count} left with status {rank.process.returncode}; it said: "
            f"{said.splitlines()[-1]}",
            _WAY_OUT,
        )
    if late:
        absent = [rank for rank in late if CAME not in rank.lines]
        names = ", ".join(str(rank.number) for rank in absent or late)
        what = "did not start" if absent else "did not finish the exchange"
        raise ProblemError(f"of {count} ranks, {names} {what} within {seconds:g} s", _WAY_OUT)


def _measured(rank: Rank) -> dict[str, float]:
    for line in rank.lines:
        if line.startswith(DONE):
            found: dict[str, float] = json.loads(line.removeprefix(DONE))
            return found
    raise ProblemError(f"rank {rank.number} ended without a result", "try again")


def _text(ranks: int, device: str, found: dict[str, float]) -> str:
    rate = size_text(found["bytes"] / found["seconds"])
    backend = "gloo" if device == "cpu" else "NCCL"
    return (
        f"{ranks} ranks met over {backend}; an all_reduce of {size_text(found['bytes'])} is right, {rate}/s"
    )
