"""Members of a group for weights: each rank once, all of one mind, and again after a restart."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
import torch.distributed as dist

from fastsft.weight_sync import WeightReceiver, fsdp_sync_weight_nccl, sync_plan
from fastsft.weight_sync.groups import WeightGroup
from weight_sync_parts.modules import make_engine
from weight_sync_parts.receivers import Loaded, in_threads


def join(store: Any, rank: int, world_size: int = 2, backend: str = "gloo", timeout_s: float = 60.0) -> Any:
    """The group, or the error that joining it ended with."""
    try:
        return WeightGroup(store, rank, world_size, backend=backend, timeout_s=timeout_s)
    except (ValueError, RuntimeError) as error:
        return error


def members(store: Any) -> list[WeightGroup]:
    groups = in_threads([lambda: join(store, 0), lambda: join(store, 1)])
    assert all(isinstance(group, WeightGroup) for group in groups), groups
    return groups


@pytest.mark.parametrize(("world_size", "backend", "message"), [
    (3, "gloo", "would make a group of 3 members over gloo; the first .* makes one of 2 members over gloo"),
    (2, "nccl", "would make a group of 2 members over nccl; .* 2 members over gloo"),
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


@pytest.mark.parametrize(("rank", "world_size", "timeout_s", "message"), [
    (2, 2, 1.0, "rank: expected 0 to 1 in a group of 2, got 2"),
    (-1, 2, 1.0, "rank: expected 0 to 1 in a group of 2, got -1"),
    (0, -1, 1.0, "world_size: expected 1 or more, got -1"),
    (0, 0, 1.0, "world_size: expected 1 or more, got 0"),
    (0, 2, 0.0, "timeout_s: expected seconds, more than 0"),
])  # fmt: skip
def test_impossible_members_are_refused(rank: int, world_size: int, timeout_s: float, message: str) -> None:
    error = join(dist.HashStore(), rank, world_size, timeout_s=timeout_s)
    assert isinstance(error, ValueError) and message in str(error)


def test_an_unknown_backend_is_refused() -> None:
    with pytest.raises(ValueError, match="expected one of gloo, nccl, got 'mpi'"):
        WeightGroup(dist.HashStore(), 0, 2, backend="mpi")


def test_a_member_that_never_comes_is_named() -> None:
    for rank, others in ((0, "1, 2"), (1, "0, 2")):
        error = join(dist.HashStore(), rank, 3, timeout_s=0.2)
        assert f"rank {others} has not joined generation 0 " in str(error) and "0.2 seconds" in str(error)


def test_two_members_with_one_rank_are_named() -> None:
    store = dist.HashStore()
    first, second = in_threads([
        lambda: join(store, 1, 3), lambda: _later(store, lambda: join(store, 1, 3, timeout_s=1.0), "seat/1"),
    ])  # fmt: skip
    assert isinstance(first, ValueError)
    with pytest.raises(ValueError, match=r"rank 1: process .* has joined this group under the same rank"):
        raise first
    with pytest.raises(RuntimeError, match="rank 0, 2 has not joined generation 0 of this group within 1 s"):
        raise second


@pytest.mark.parametrize("again", [0, 1])
def test_a_member_that_was_started_again_joins_the_next_generation(again: int) -> None:
    store = dist.HashStore()
    groups = members(store)
    groups[again], rebuilt = in_threads([lambda: join(store, again), groups[1 - again].rebuild])
    assert rebuilt is None
    assert [group.generation for group in groups] == [1, 1]
    assert _sync(groups, 1.0) == [1, 1]


def test_whoever_comes_again_alone_hears_whom_it_waits_for() -> None:
    store = dist.HashStore()
    groups = members(store)
    began = time.monotonic()
    error = join(store, 1, timeout_s=0.5)
    assert isinstance(error, RuntimeError) and time.monotonic() - began < 30.0
    with pytest.raises(RuntimeError, match=r"rank 0 has not joined generation 1 .* \(came before, and not"):
        raise error
    # Nobody is disturbed by it: the group goes on, and the next generation is made by whoever comes.
    assert _sync(groups, 1.0) == [1, 1]
    groups[1], _ = in_threads([lambda: join(store, 1), groups[0].rebuild])
    assert [group.generation for group in groups] == [1, 1]
    assert _sync(groups, 2.0) == [2, 2]


def test_a_rebuild_that_failed_costs_its_time_only() -> None:
    store = dist.HashStore()
    groups = members(store)
    groups[0]._timeout, timeout = groups[0]._timeout / 200, groups[0]._timeout
    for _ in range(3):
        with pytest.raises(RuntimeError, match=r"rank 1 has not joined generation 1 of .* within 0\.3 "):
            groups[0].rebuild()
    with pytest.raises(RuntimeError, match="or its rebuild did not succeed"):
        fsdp_sync_weight_nccl(make_engine(torch.nn.Linear(2, 2), "plain"), groups[0])
    groups[0]._timeout = timeout
    assert in_threads([group.rebuild for group in groups]) == [None, None]
    assert [group.generation for group in groups] == [1, 1]
    assert _sync(groups, 1.0) == [1, 1]


def test_a_store_that_is_gone_can_be_replaced() -> None:
    """Of a trainer that serves it, and is killed: its restart makes another one."""
    server = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    client = dist.TCPStore("127.0.0.1", server.port, None, False, wait_for_workers=False)
    groups = in_threads([lambda: join(server, 0), lambda: join(client, 1)])
    assert _sync(groups, 1.0) == [1, 1]
    del server
    groups[0] = None
    with pytest.raises(RuntimeError, match=r"its store is gone, .* rebuild\(store\)"):
        groups[1].rebuild()
    server = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    client = dist.TCPStore("127.0.0.1", server.port, None, False, wait_for_workers=False)
    groups[0], rebuilt = in_threads([lambda: join(server, 0), lambda: groups[1].rebuild(client)])
    assert rebuilt is None and [group.generation for group in groups] == [1, 1]
    assert _sync(groups, 2.0) == [2, 2]  # a version that the receiver does not have


def test_a_seat_that_no_member_wrote_is_named() -> None:
    store = dist.HashStore()
    store.set("weights/seat/1", '{"token": 3')
    error = join(store, 0)
    assert isinstance(error, RuntimeError) and "a seat that no member wrote" in str(error)


def _sync(groups: list[WeightGroup], value: float) -> list[Any]:
    """Both ends' versions; the receiver is a new one, and has exactly what was sent."""
    engine, loaded = make_engine(torch.nn.Linear(3, 3), "plain"), Loaded()
    for parameter in engine.module.parameters():
        torch.nn.init.constant_(parameter, value)
    receiver = WeightReceiver(groups[1], sync_plan(engine), loaded, deadline_s=30.0)
    outcomes = in_threads([
        lambda: fsdp_sync_weight_nccl(engine, groups[0], deadline_s=30.0), receiver.receive,
    ])  # fmt: skip
    assert all((tensor == value).all() for _, tensor in loaded.tensors) and len(loaded.tensors) == 2
    return outcomes


def _later(store: Any, work: Any, key: str = "group") -> Any:
    """After the first member has said what group it makes, or has taken its seat."""
    dist.PrefixStore("weights", store).wait([key])
    return work()
