"""Receivers on threads of this process, in a gloo group of their own."""

from __future__ import annotations

import faulthandler
import functools
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from fastsft.weight_sync import WeightGroup, WeightReceiver

# Of a wait that should end soon, however busy the machine is; shorter than `in_threads` waits, whose words
# say less than those of the wait that has not ended.
PATIENCE_S = 90.0


def make_groups(count: int, timeout_s: float = PATIENCE_S) -> list[WeightGroup]:
    """A sender's group and those of its receivers, which meet in one process."""
    store = dist.HashStore()
    make = functools.partial(WeightGroup, store, timeout_s=timeout_s)
    return in_threads([functools.partial(make, rank, count) for rank in range(count)])


def in_threads(works: list[Callable[[], Any]], limit_s: float = 100.0) -> list[Any]:
    """What each returned, or the exception that it raised. AssertionError when one takes longer than that."""
    outcomes: list[Any] = [None] * len(works)

    def run(number: int) -> None:
        try:
            outcomes[number] = works[number]()
        except Exception as error:
            outcomes[number] = error

    join([start(f"member-{number}", functools.partial(run, number)) for number in range(len(works))], limit_s)
    return outcomes


def start(name: str, work: Callable[[], Any]) -> threading.Thread:
    """A thread that a process which ends does not wait for."""
    thread = threading.Thread(target=work, name=name, daemon=True)
    thread.start()
    return thread


def join(threads: list[threading.Thread], limit_s: float = 100.0) -> None:
    """Until all have ended. AssertionError, after the stacks of all threads, when one has not in time."""
    end = time.monotonic() + limit_s
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    late = [thread.name for thread in threads if thread.is_alive()]
    if late:
        faulthandler.dump_traceback(file=sys.__stderr__)
    assert not late, f"threads {late} had not ended after {limit_s:g} seconds"


class Loaded:
    """What a receiver loaded, in order."""

    def __init__(self) -> None:
        self.tensors: list[tuple[str, torch.Tensor]] = []

    def __call__(self, tensors: list[tuple[str, torch.Tensor]]) -> None:
        self.tensors += [(name, tensor.clone()) for name, tensor in tensors]


def sync(send: Callable[[Any], Any], plan: Any, count: int = 2, **options: Any) -> tuple[Any, list[Any]]:
    """`send(group)` beside `count` receivers: what it returned or raised, and a (receiver, Loaded) each."""
    groups = make_groups(count + 1)
    ends = [(Loaded(), group) for group in groups[1:]]
    receivers = [WeightReceiver(group, plan, loaded, **options) for loaded, group in ends]
    outcomes = in_threads([lambda: send(groups[0]), *[receiver.receive for receiver in receivers]])
    return outcomes[0], [
        (receiver, outcome, loaded)
        for receiver, outcome, (loaded, _) in zip(receivers, outcomes[1:], ends, strict=True)
    ]
