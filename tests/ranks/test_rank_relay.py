"""Ranks that wait for one that works: its progress is theirs."""

from __future__ import annotations

import os
import time
from typing import Any, NamedTuple

import torch.distributed as dist

from fastsft import _C
from fastsft.ranks import rank0_first
from fastsft.runtime.timeouts import note_progress
from ranks import run_ranks

LIMIT, WORK = 1.5, 3.0  # seconds without progress, and of the whole job


class Made(NamedTuple):
    cache: tuple[str, str] | None
    faults: list[Any]


def work_slowly(groups: dict[str, str]) -> str:
    place = {"RANK": dist.get_rank(), "LOCAL_RANK": dist.get_rank(), "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}
    os.environ.update({name: str(value) for name, value in place.items()})
    rank0_first._WAIT_SECONDS = 0.1

    def make() -> Made:
        end = time.monotonic() + WORK
        while time.monotonic() < end:
            time.sleep(0.1)
            note_progress()
        return Made(("file", "key"), [])

    _C.enter_phase("data", timeout_seconds=LIMIT)
    made = rank0_first.relay(make, lambda key: Made((key, key), []))
    _C.enter_phase("none", timeout_seconds=0)
    assert made.cache is not None
    return made.cache[0]


def test_who_waits_for_a_slow_rank_is_not_stuck() -> None:
    """A rank that stood still for so long would have ended with status 3."""
    assert run_ranks(2, work_slowly) == ["file", "key"]
