"""Receivers on threads of this process, in a gloo group of their own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from fastsft.weight_sync import WeightGroup, WeightReceiver


def make_groups(count: int, timeout_s: float = 30.0) -> list[WeightGroup]:
    """A sender's group and those of its receivers, which meet in one process."""
    store = dist.HashStore()
    return in_threads(
        [lambda rank=rank: WeightGroup(store, rank, count, timeout_s=timeout_s) for rank in range(count)]
    )


def in_threads(works: list[Callable[[], Any]]) -> list[Any]:
    """What each returned, or the exception that it raised."""
    outcomes: list[Any] = [None] * len(works)

    def run(number: int) -> None:
        try:
            outcomes[number] = works[number]()
        except Exception as error:
            outcomes[number] = error

    threads = [
        threading.Thread(target=run, args=(number,), name=f"member-{number}") for number in range(len(works))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


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
