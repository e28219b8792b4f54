"""Tensors of operations that were given up live as long as the operations."""

from __future__ import annotations

import weakref

import pytest
import torch

from fastsft.weight_sync.abandoned import hold, let_go


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
    hold(group, {first: (tensors[0],), second: (tensors[1],)})
    del tensors, group
    first.state = state
    let_go()
    assert alive_group() is not None
    kept = alive[1]()
    assert alive[0]() is not None and kept is not None and kept.tolist() == [1, 1, 1]
    del kept
    second.state = state
    let_go()
    assert [each() for each in alive] == [None, None] and alive_group() is None
