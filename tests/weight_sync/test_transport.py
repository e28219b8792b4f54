"""Operations on gloo groups enter torch one at a time, whichever thread they come from."""

from __future__ import annotations

import threading
import time
from typing import Any

import torch

from fastsft.weight_sync.groups import Transport
from weight_sync_parts.receivers import in_threads


class Watched:
    """A group that notes how many threads are in its operations at once."""

    inside, most = 0, 0
    counting = threading.Lock()

    def rank(self) -> int:
        return 0

    def size(self) -> int:
        return 1

    def broadcast(self, *_: Any) -> Watched:
        with self.counting:
            Watched.inside += 1
            Watched.most = max(Watched.most, Watched.inside)
        time.sleep(0.01)  # long enough for another thread to come in
        with self.counting:
            Watched.inside -= 1
        return self

    def allgather(self, outputs: Any, inputs: Any, _: Any) -> Watched:
        outputs[0][0].copy_(inputs[0])
        return self.broadcast()

    def wait(self, *_: Any) -> bool:
        return True


def test_operations_of_two_groups_never_overlap() -> None:
    def use() -> None:
        transport = Transport(Watched(), 10.0)
        for _ in range(5):
            transport.wait(transport.broadcast(torch.zeros(2)), "a tensor")
            transport.vote({}, "nothing")

    assert in_threads([use, use, use]) == [None] * 3
    assert Watched.most == 1
