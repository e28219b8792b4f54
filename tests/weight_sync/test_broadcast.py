"""fsdp_sync_weight_nccl: every tensor once, in the plan's order; an error on both ends instead of a hang."""

from __future__ import annotations

import datetime
import math
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from fastsft.weight_sync import SyncPlan, WeightReceiver, fsdp_sync_weight_nccl, modes, sync_plan
from ranks import run_ranks
from weight_sync_parts import broadcast_world
from weight_sync_parts.modules import make_engine, make_model, state_of_model
from weight_sync_parts.receivers import PATIENCE_S, Loaded, in_threads, join, make_groups, start, sync
from weight_sync_parts.save_world import KINDS

MODES = broadcast_world.MODES
WORLDS = {2: KINDS, 4: ("fsdp1", "fsdp2")}
CASES = [
    (ranks, f"{kind}-{tied}") for ranks, kinds in WORLDS.items() for kind in kinds for tied in (False, True)
]


def test_every_mode_is_tested() -> None:
    assert {name for name, mode in modes.MODES.items() if not mode.every_rank} == set(MODES)


@pytest.fixture(scope="module")
def worlds() -> dict[int, Any]:
    """number of trainer ranks -> what rank 0 saw, by case."""
    return {ranks: run_ranks(ranks, broadcast_world.everything, kinds)[0] for ranks, kinds in WORLDS.items()}


@pytest.mark.parametrize(("ranks", "case"), CASES)
@pytest.mark.parametrize("mode", MODES)
def test_receivers_have_the_models_weights(worlds: Any, ranks: int, case: str, mode: str) -> None:
    seen = worlds[ranks][case]
    expected, (names, tied) = seen["expected"], seen["plan"]
    for version, outcome, tensors, dirty in seen["received"][mode]:
        assert (version, dirty) == (2 * (MODES.index(mode) + 1), False)
        assert outcome == version
        received = dict(tensors)
        assert len(received) == len(tensors) and received.keys() == set(names)
        for name in names:
            assert received[name].dtype == expected[name].dtype
            assert torch.equal(received[name], expected[name]), name
    assert expected.keys() - set(names) == set(tied)
    assert tied == ({"head.weight": "embed.weight"} if case.endswith("True") else {})


@pytest.mark.parametrize(("ranks", "case"), [entry for entry in CASES if entry[1].startswith("fsdp1")])
def test_a_parameter_of_nested_units_is_planned_once(worlds: Any, ranks: int, case: str) -> None:
    seen = worlds[ranks][case]
    assert sorted(seen["without buffers"]) == sorted(set(seen["parameters"]))


def test_a_failing_gather_is_told_to_everybody() -> None:
    first, second = run_ranks(2, broadcast_world.failing)
    words = "MemoryError: no room for a bucket"
    assert len(first) == 4 and first[-1] == "True"
    assert all(words in message for message in first[:3])
    assert second == [first[0]] and "sending version 1: rank 0 failed" in first[0]


def test_ranks_with_different_models_are_named() -> None:
    for message in run_ranks(2, broadcast_world.other_model):
        assert "the model of rank 1 is not that of rank 0" in message


@pytest.fixture
def engine() -> Any:
    return make_engine(make_model(False), "plain")


def sender(engine: Any, **options: Any) -> Any:
    return lambda group: fsdp_sync_weight_nccl(engine, group, **{"deadline_s": PATIENCE_S, **options})


def read_vllm(group: Any, metadata: Any, buffer_bytes: int) -> list[tuple[str, torch.Tensor]]:
    """vLLM's consumer, from its published rule."""
    waiting, size, received = [], 0, []

    def flush() -> None:
        packed = torch.empty(size, dtype=torch.uint8)
        group.broadcast([packed], dist.BroadcastOptions()).wait(datetime.timedelta(seconds=PATIENCE_S))
        parts = packed.split([each[3] for each in waiting])
        for (name, dtype, shape, _), part in zip(waiting, parts, strict=True):
            received.append((name, part.clone().view(dtype).view(shape)))

    for name, dtype_name, shape in metadata:
        dtype = getattr(torch, dtype_name.removeprefix("torch."))
        waiting.append((name, dtype, shape, math.prod(shape) * dtype.itemsize))
        size += waiting[-1][3]
        if size > buffer_bytes:
            flush()
            waiting, size = [], 0
    if waiting:
        flush()
    return received


def read_trinity(group: Any, metadata: Any, _: int) -> list[tuple[str, torch.Tensor]]:
    """The original's receiver: a tensor from the metadata, a broadcast, the next one."""
    received = []
    for name, dtype_name, shape in metadata:
        tensor = torch.empty(shape, dtype=getattr(torch, dtype_name.removeprefix("torch.")))
        group.broadcast([tensor], dist.BroadcastOptions()).wait(datetime.timedelta(seconds=PATIENCE_S))
        received.append((name, tensor))
    return received


@pytest.mark.parametrize(("mode", "read"), [("vllm_packed", read_vllm), ("trinity", read_trinity)])
@pytest.mark.parametrize("dtype", [None, "bfloat16"])
@pytest.mark.parametrize("bucket_bytes", [1, 28, 60, 176, 10**9])
def test_foreign_receivers_read_the_stream(
    engine: Any, mode: str, read: Any, dtype: str | None, bucket_bytes: int
) -> None:
    metadata = sync_plan(engine, save_dtype=dtype).metadata()
    groups = make_groups(2)
    # The receivers are programs of others in a group of ours: they know no handshake.
    send = sender(engine, mode=mode, save_dtype=dtype, bucket_bytes=bucket_bytes, handshakes=False)
    version, received = in_threads(
        [lambda: send(groups[0]), lambda: read(groups[1].group, metadata, bucket_bytes)]
    )
    assert version == 1
    model = engine.module
    narrow = torch.float32 if dtype is None else torch.bfloat16
    parameters = dict(model.named_parameters())
    assert [name for name, _ in received] == list(state_of_model(model))
    for name, tensor in received:
        expected = state_of_model(model)[name]
        assert torch.equal(tensor, expected.to(narrow) if name in parameters else expected), name


def test_sglang_requests_are_announced_before_their_tensors(engine: Any) -> None:
    plan, requests = sync_plan(engine), []
    version, _ = sync(
        sender(engine, mode="sglang", bucket_bytes=96, announce=requests.append),
        plan,
        mode="sglang",
        bucket_bytes=96,
    )
    assert version == 1
    assert [name for request in requests for name in request["names"]] == plan.names
    assert [request["flush_cache"] for request in requests] == [False] * (len(requests) - 1) + [True]
    assert {request["weight_version"] for request in requests} == {"1"}
    assert [dtype for request in requests for dtype in request["dtypes"]] == plan.dtype_names
    sizes = [sum(plan.sizes[plan.names.index(name)] for name in request["names"]) for request in requests]
    assert all(size <= 96 or len(r["names"]) == 1 for size, r in zip(sizes, requests, strict=True))


def changed(plan: SyncPlan, fault: str) -> SyncPlan:
    tensors = list(plan.tensors)
    if fault == "order":
        tensors[1], tensors[2] = tensors[2], tensors[1]
    elif fault == "missing":
        del tensors[2]
    elif fault == "more":
        tensors.append(("extra", "float32", [1]))
    else:
        name, dtype, shape = tensors[2]
        tensors[2] = {
            "name": ("other", dtype, shape),
            "dtype": (name, "float16", shape),
            "shape": (name, dtype, shape[::-1] if len(shape) > 1 else [1, *shape]),
        }[fault]
    return SyncPlan(tensors)


MESSAGES = {
    "order": "the order differs", "missing": "is missing in the receiver's plan",
    "more": "tensor extra is missing in the sender's plan",
    "name": "tensor other is missing in the sender's plan",
    "dtype": "float16", "shape": "in the receiver's plan and",
}  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("fault", MESSAGES)
def test_another_plan_is_an_error_on_both_ends(engine: Any, mode: str, fault: str) -> None:
    plan = changed(sync_plan(engine), fault)
    options = {"mode": mode, "handshakes": True, "deadline_s": PATIENCE_S}
    error, ends = sync(sender(engine, **options), plan, **options)
    # The plans' difference, which no wait that came to its deadline would know.
    assert isinstance(error, RuntimeError) and MESSAGES[fault] in str(error)
    for receiver, outcome, loaded in ends:
        assert isinstance(outcome, RuntimeError) and MESSAGES[fault] in str(outcome)
        assert (loaded.tensors, receiver.dirty, receiver.version) == ([], False, 0)


@pytest.mark.parametrize("mode", MODES)
def test_an_equal_plan_passes_the_handshake(engine: Any, mode: str) -> None:
    options = {"mode": mode, "handshakes": True, "deadline_s": PATIENCE_S}
    version, ends = sync(sender(engine, version=7, **options), sync_plan(engine), **options)
    assert version == 7
    assert all(
        outcome == 7 and len(loaded.tensors) == len(receiver.plan) for receiver, outcome, loaded in ends
    )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("absent", ["sender", "receiver"])
def test_an_absent_peer_is_an_error_within_the_deadline(engine: Any, mode: str, absent: str) -> None:
    groups, plan = make_groups(2), sync_plan(engine)
    options: dict[str, Any] = {"mode": mode, "deadline_s": 0.3}
    receiver = WeightReceiver(groups[1], plan, Loaded(), **options)
    big = make_engine(torch.nn.Linear(1500, 1500), "plain")  # more than the sockets hold
    send = sender(big, **options)
    (outcome,) = in_threads([receiver.receive if absent == "sender" else lambda: send(groups[0])])
    assert isinstance(outcome, RuntimeError) and "took more than 0.3 seconds" in str(outcome)


def test_a_group_that_failed_is_refused_until_it_is_rebuilt(engine: Any) -> None:
    groups, plan = make_groups(2), sync_plan(engine)
    loaded = Loaded()
    receiver = WeightReceiver(groups[1], plan, loaded, mode="native", deadline_s=0.2)
    with pytest.raises(RuntimeError, match="took more than"):
        receiver.receive()
    with pytest.raises(RuntimeError, match="failed in an earlier sync"):
        receiver.receive()
    in_threads([group.rebuild for group in groups])
    assert [group.generation for group in groups] == [1, 1]
    send = sender(engine, mode="native")
    receiver = WeightReceiver(groups[1], plan, loaded, mode="native", deadline_s=PATIENCE_S)
    assert in_threads([lambda: send(groups[0]), receiver.receive]) == [1, 1]


def test_versions_grow_on_both_ends(engine: Any) -> None:
    groups, plan = make_groups(2), sync_plan(engine)
    receiver = WeightReceiver(groups[1], plan, Loaded(), mode="native", deadline_s=PATIENCE_S)
    send = sender(engine, mode="native", version=5)
    assert in_threads([lambda: send(groups[0]), receiver.receive]) == [5, 5]
    with pytest.raises(ValueError, match="version 5 is not newer than 5, which receivers have"):
        send(groups[0])
    behind = sender(make_engine(engine.module, "plain"), mode="native", version=4)
    del engine._fastsft_weight_sync
    for outcome in in_threads([lambda: behind(groups[0]), receiver.receive]):
        assert "version 4 is not newer than 5" in str(outcome)
    assert receiver.version == 5


@pytest.mark.parametrize(("option", "value"), [("mode", "vllm_packed"), ("bucket_bytes", 64)])
def test_other_options_are_an_error_on_both_ends(engine: Any, option: str, value: Any) -> None:
    options: dict[str, Any] = {"mode": "trinity", "handshakes": True, "deadline_s": PATIENCE_S}
    error, ends = sync(sender(engine, **options), sync_plan(engine), **{**options, option: value})
    for outcome in (error, *[outcome for _, outcome, _ in ends]):
        assert isinstance(outcome, RuntimeError) and f"{option}: expected {value}" in str(outcome)


def test_a_receiver_that_cannot_load_stops_all(engine: Any) -> None:
    groups, plan = make_groups(3), sync_plan(engine)
    calls = []

    def load(tensors: Any) -> None:
        calls.append(tensors)
        if len(calls) == 3:
            raise OSError("out of memory")

    options: dict[str, Any] = {"mode": "native", "bucket_bytes": 96, "deadline_s": PATIENCE_S}
    receivers = [
        WeightReceiver(groups[1], plan, Loaded(), **options),
        WeightReceiver(groups[2], plan, load, **options),
    ]
    send = sender(engine, **options)
    for outcome in in_threads([lambda: send(groups[0]), *[receiver.receive for receiver in receivers]]):
        assert "receiver 2: OSError: out of memory" in str(outcome)
    assert all(receiver.dirty and receiver.version == 0 for receiver in receivers)


def test_changed_bytes_are_noticed(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    checksum = modes._checksum

    def spoiled(buffer: torch.Tensor, options: Any) -> Any:
        if threading.current_thread().name == "member-1":
            buffer[0] += 1
        return checksum(buffer, options)

    monkeypatch.setattr(modes, "_checksum", spoiled)
    error, ends = sync(sender(engine, mode="native"), sync_plan(engine), mode="native", deadline_s=PATIENCE_S)
    for outcome in (error, *[outcome for _, outcome, _ in ends]):
        assert "bucket 0: checksums differ" in str(outcome)


def test_extra_dimensions_of_a_shape_are_noticed_after_planning() -> None:
    tensors = {"w": torch.ones(4)}
    module = torch.nn.Linear(1, 1)
    engine = SimpleNamespace(module=module, get_per_tensor_param=lambda: (iter(tensors.items()), None))
    plan = sync_plan(engine)
    for later in ({"w": torch.ones(2, 2)}, {"v": torch.ones(4)}, {}):
        tensors.clear()
        tensors.update(later)
        error, ends = sync(sender(engine, mode="native"), plan, count=1, mode="native", deadline_s=PATIENCE_S)
        assert "make a new plan" in str(error) and "make a new plan" in str(ends[0][1])


def test_the_lock_keeps_a_training_step_out(engine: Any) -> None:
    from fastsft.weight_sync import exclusive

    groups, plan = make_groups(2), sync_plan(engine)
    receiver = WeightReceiver(groups[1], plan, Loaded(), deadline_s=PATIENCE_S)
    send = sender(engine)
    order: list[str] = []

    def transfer() -> None:
        send(groups[0])
        order.append("sync")

    with exclusive(engine):
        threads = [start("transfer", transfer), start("receiver", receiver.receive)]
        time.sleep(0.1)
        order.append("step")
    join(threads)
    assert order == ["step", "sync"]


def test_an_engine_that_is_never_free_is_an_error(engine: Any) -> None:
    from fastsft.weight_sync import exclusive

    with exclusive(engine):
        (outcome,) = in_threads([lambda: sender(engine, deadline_s=0.1)(None)])
    assert "another thread has held the engine for 0.1 seconds" in str(outcome)


@pytest.mark.parametrize(("options", "message"), [
    ({"mode": "smoke"}, "mode: expected one of native, .*, trinity, vllm_packed, got 'smoke'"),
    ({"version": 0}, "version 0 is not newer than 0"),
    ({}, "expected a group on trainer rank 0, got None"),
])  # fmt: skip
def test_wrong_calls_are_refused(engine: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fsdp_sync_weight_nccl(engine, None, **options)


def test_the_sender_must_be_rank_0_of_the_group(engine: Any) -> None:
    groups = make_groups(2)
    with pytest.raises(ValueError, match="trainer rank 0 as its rank 0, got 1"):
        fsdp_sync_weight_nccl(engine, groups[1])
