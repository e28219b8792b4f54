"""Tensors of operations that were given up live as long as the operations."""

from __future__ import annotations

import time
import weakref
from typing import Any

import pytest
import torch

from fastsft.weight_sync import held_operations
from fastsft.weight_sync.groups import Transport
from fastsft.weight_sync.held_operations import keep_until_done, release_done


class Work:
    """An operation that is under way, over, or of which its backend knows nothing any more."""

    state = "under way"

    def is_completed(self) -> bool:
        if self.state == "lost":
            raise RuntimeError("the device is gone")
        return self.state == "over"


@pytest.mark.parametrize("state", ["over", "lost"])
def test_they_are_let_go_when_all_operations_of_a_transfer_are_over(state: str) -> None:
    first, second = Work(), Work()
    tensors = [torch.zeros(3), torch.ones(3)]
    alive = [weakref.ref(tensor) for tensor in tensors]
    group = Work()  # whatever can be referred to weakly
    alive_group = weakref.ref(group)
    keep_until_done(group, [(first, (tensors[0],)), (second, (tensors[1],))], 60.0)
    del tensors, group
    first.state = state
    release_done()
    assert alive_group() is not None
    kept = alive[1]()
    assert alive[0]() is not None and kept is not None and kept.tolist() == [1, 1, 1]
    del kept
    second.state = state
    release_done()
    assert [each() for each in alive] == [None, None] and alive_group() is None


def test_what_is_never_over_is_held_until_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_operations, "_HELD_SLACK_S", 0.0)
    tensor = torch.zeros(3)
    alive = weakref.ref(tensor)
    keep_until_done(Work(), [(Work(), (tensor,))], 0.2)
    del tensor
    end = time.monotonic() + 60.0
    while alive() is not None:  # a thread sees to it, whatever else goes on
        assert time.monotonic() < end
        time.sleep(0.01)


class Bare:
    """A group and an operation that can do the least, and cannot be a key."""

    __hash__ = None  # type: ignore[assignment]
    error: RuntimeError | None = None

    def rank(self) -> int:
        return 0

    def size(self) -> int:
        return 1

    def broadcast(self, *_: Any) -> Bare:
        return self

    def wait(self, *_: Any) -> None:
        if self.error is not None:
            raise self.error


class BareGroup(Bare):
    __hash__ = object.__hash__


def test_operations_that_cannot_be_asked_spoil_nothing() -> None:
    group = BareGroup()
    group.error = RuntimeError("lost")
    transport = Transport(group, 10.0)
    with pytest.raises(RuntimeError, match="lost"):
        transport.wait(transport.broadcast(torch.zeros(2)), "a tensor")
    good = Bare()
    after = Transport(BareGroup(), 10.0)
    after._group.broadcast = lambda *_: good
    after.wait(after.broadcast(torch.zeros(2)), "a tensor")
    assert not after._in_flight
