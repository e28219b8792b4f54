"""Who may join a group for weights: each rank once, and only those that mean the same group."""

from __future__ import annotations

from typing import Any

import pytest
import torch.distributed as dist

from fastsft.weight_sync.groups import WeightGroup
from weight_sync_parts.receivers import in_threads


def join(store: Any, rank: int, world_size: int = 2, backend: str = "gloo") -> Any:
    """The group, or the error that joining it ended with."""
    try:
        return WeightGroup(store, rank, world_size, backend=backend, timeout_s=5.0)
    except (ValueError, RuntimeError) as error:
        return error


@pytest.mark.parametrize(("world_size", "backend", "message"), [
    (3, "gloo", "would make a group of 3 members over gloo; the first .* makes one of 2 members over gloo"),
    (2, "shared_memory", "would make a group of 2 members over shared_memory; .* 2 members over gloo"),
])  # fmt: skip
def test_a_member_that_means_another_group_is_refused(world_size: int, backend: str, message: str) -> None:
    store = dist.HashStore()
    first, other, right = in_threads([
        lambda: join(store, 0),
        lambda: _later(store, lambda: join(store, 1, world_size, backend)),
        lambda: _later(store, lambda: join(store, 1)),
    ])  # fmt: skip
    assert isinstance(other, ValueError)
    with pytest.raises(ValueError, match=message):
        raise other
    # The refused one has taken no place.
    assert isinstance(first, WeightGroup) and isinstance(right, WeightGroup)


def test_who_comes_after_all_have_joined_is_refused() -> None:
    store = dist.HashStore()
    assert all(isinstance(group, WeightGroup) for group in in_threads([
        lambda: join(store, 0), lambda: join(store, 1),
    ]))  # fmt: skip
    for rank in (0, 1):
        with pytest.raises(ValueError, match=f"rank {rank} has joined generation 0 of this group before"):
            raise join(store, rank)
    with pytest.raises(ValueError, match="expected 0 to 1 in a group of 2, got 2"):
        raise join(store, 2)


def _later(store: Any, work: Any) -> Any:
    """After the first member has said what group it makes."""
    dist.PrefixStore("weights/0", store).wait(["group"])
    return work()
