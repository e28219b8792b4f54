"""Weights through shared memory: the same streams, errors and deadlines as over gloo."""

from __future__ import annotations

import secrets
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from fastsft import _C
from fastsft.weight_sync import WeightGroup, WeightReceiver, fsdp_sync_weight_nccl, sync_plan
from fastsft.weight_sync import groups as groups_of_sync
from fastsft.weight_sync.modes import MODES as ALL_MODES
from weight_sync_parts.modules import make_engine, make_model, state_of_model
from weight_sync_parts.receivers import Loaded, in_threads, make_groups, sync

BACKEND = "shared_memory"


@pytest.fixture(autouse=True)
def nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Segments lose their names when all have come."""
    draw, made = secrets.token_hex, list[str]()

    def token_hex(size: int) -> str:
        made.append(draw(size))
        return made[-1]

    monkeypatch.setattr(secrets, "token_hex", token_hex)
    yield
    assert [name for name in made if Path(f"/dev/shm/fastsft-{name}").exists()] == []


@pytest.fixture
def engine() -> Any:
    return make_engine(make_model(False), "plain")


@pytest.mark.parametrize("mode", sorted(name for name, mode in ALL_MODES.items() if not mode.every_rank))
@pytest.mark.parametrize("slot_bytes", [64, groups_of_sync.SLOT_BYTES])
def test_receivers_have_the_models_weights(
    engine: Any, mode: str, slot_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups_of_sync, "SLOT_BYTES", slot_bytes)
    options: dict[str, Any] = {"mode": mode, "bucket_bytes": 96, "deadline_s": 30.0, "handshakes": True}
    plan = sync_plan(engine)
    version, ends = sync(
        lambda group: fsdp_sync_weight_nccl(engine, group, **options), plan, backend=BACKEND, **options
    )
    assert version == 1
    for receiver, outcome, loaded in ends:
        assert (outcome, receiver.dirty) == (1, False)
        received, expected = dict(loaded.tensors), state_of_model(engine.module)
        assert received.keys() == expected.keys()
        assert all(torch.equal(received[name], tensor) for name, tensor in expected.items())


def test_many_syncs_of_one_group(engine: Any) -> None:
    groups, loaded = make_groups(3, backend=BACKEND), Loaded()
    plan = sync_plan(engine)
    receivers = [WeightReceiver(group, plan, loaded, mode="native", deadline_s=30.0) for group in groups[1:]]
    for version in range(1, 6):
        with torch.no_grad():
            engine.module.embed.weight.fill_(version)
        loaded.tensors.clear()
        outcomes = in_threads([
            lambda: fsdp_sync_weight_nccl(engine, groups[0], mode="native", deadline_s=30.0),
            *[receiver.receive for receiver in receivers],
        ])  # fmt: skip
        assert outcomes == [version] * 3
        assert all((t == version).all() for name, t in loaded.tensors if name == "embed.weight")


def test_another_plan_is_an_error_on_both_ends(engine: Any) -> None:
    other = sync_plan(make_engine(make_model(False, rows=12), "plain"))
    options: dict[str, Any] = {"mode": "native", "deadline_s": 20.0}
    error, ends = sync(
        lambda group: fsdp_sync_weight_nccl(engine, group, **options), other, backend=BACKEND, **options
    )
    for outcome in (error, *[outcome for _, outcome, _ in ends]):
        assert "tensor embed.weight is float32 [12, 4] in the receiver's plan" in str(outcome)


@pytest.mark.parametrize("absent", ["sender", "receiver"])
def test_an_absent_peer_is_an_error_and_ends_the_group_for_all(engine: Any, absent: str) -> None:
    groups, plan = make_groups(2, backend=BACKEND), sync_plan(engine)
    receiver = WeightReceiver(groups[1], plan, Loaded(), mode="native", deadline_s=0.3)

    def send(deadline_s: float) -> int:
        return fsdp_sync_weight_nccl(engine, groups[0], mode="native", deadline_s=deadline_s)

    alone = receiver.receive if absent == "sender" else lambda: send(0.3)
    with pytest.raises(RuntimeError, match=r"no sign of rank|not done in time"):
        alone()
    late = send if absent == "sender" else lambda _: receiver.receive()
    with pytest.raises(RuntimeError, match="another member has given up"):
        late(60.0)
    assert in_threads([group.rebuild for group in groups]) == [None, None]
    receiver = WeightReceiver(groups[1], plan, Loaded(), mode="native", deadline_s=30.0)
    assert in_threads([lambda: send(30.0), receiver.receive]) == [1, 1]


def test_a_member_that_never_comes_is_named() -> None:
    for rank, others in ((0, "1, 2"), (1, "0, 2")):
        with pytest.raises(RuntimeError, match=f"rank {others} has not joined generation 0 .* 0.2 seconds"):
            WeightGroup(dist.HashStore(), rank, 3, backend=BACKEND, timeout_s=0.2)


def memories(size: int = 2, slot_bytes: int = 64) -> list[Any]:
    name = f"fastsft-{secrets.token_hex(8)}"
    made = [_C.SharedMemory(name, rank, size, slot_bytes) for rank in range(size)]
    in_threads([lambda memory=memory: memory.meet(20.0) for memory in made])
    return made


def test_a_slow_receiver_gets_every_byte() -> None:
    first, second = memories()
    sent, received = torch.arange(1000), torch.zeros(1000, dtype=torch.int64)
    begin = received[:8]

    def receive() -> None:
        time.sleep(0.1)
        second.broadcast(begin, 20.0)
        time.sleep(0.1)
        second.broadcast(received[8:], 20.0)

    def send() -> None:
        first.broadcast(sent[:8].clone(), 20.0)
        first.broadcast(sent[8:].clone(), 20.0)

    assert in_threads([send, receive]) == [None, None]
    assert torch.equal(sent, received)


@pytest.mark.parametrize(("arguments", "message"), [
    (("fastsft-none", 1, 2, 64), "cannot open rank 0's /dev/shm/fastsft-none .are all members on one host"),
    (("fastsft-none", 2, 2, 64), "expected 1 to 64 members and a rank below that, got rank 2 of 2"),
    (("fastsft-none", 0, 65, 64), "got rank 0 of 65"),
    (("a/b", 0, 2, 64), "expected a file name"),
    (("fastsft-none", 0, 2, 100), "slot_bytes: expected a multiple of 64, got 100"),
    (("fastsft-none", 0, 2, 1 << 50), "cannot reserve"),
])  # fmt: skip
def test_impossible_segments_are_refused(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises((ValueError, RuntimeError), match=message):
        _C.SharedMemory(*arguments)


def test_members_with_other_slots_are_refused() -> None:
    name = f"fastsft-{secrets.token_hex(8)}"
    first = _C.SharedMemory(name, 0, 2, 64)
    with pytest.raises(ValueError, match="slot_bytes: rank 0 has 64, rank 1 128"):
        _C.SharedMemory(name, 1, 2, 128)
    with pytest.raises(RuntimeError, match="cannot make"):
        _C.SharedMemory(name, 0, 2, 64)
    del first


def test_messages_that_do_not_fit_are_refused() -> None:
    first, _ = memories()
    with pytest.raises(ValueError, match="a message of at most 4096 bytes"):
        first.all_gather(torch.zeros(5000, dtype=torch.uint8), torch.zeros(10000, dtype=torch.uint8), 1.0)


def test_an_unknown_backend_is_refused() -> None:
    with pytest.raises(ValueError, match="expected one of gloo, nccl, shared_memory, got 'mpi'"):
        WeightGroup(dist.HashStore(), 0, 2, backend="mpi")


def test_work_that_is_not_done_is_an_error() -> None:
    first, _ = memories()
    del first
    from concurrent.futures import Future

    with pytest.raises(RuntimeError, match="not done in time"):
        groups_of_sync.SharedMemoryWork(Future()).wait(timedelta(seconds=0.01))
