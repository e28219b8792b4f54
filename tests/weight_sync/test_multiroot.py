"""native_multiroot: every trainer rank sends its own rows; receivers join them, or all hear why not."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist

from fastsft.weight_sync import SyncPlan, WeightGroup, WeightReceiver, fsdp_sync_weight_nccl, sync_plan
from fastsft.weight_sync.engine import FastsftEngine
from fastsft.weight_sync.tensor_stream import RowShard, ShardAssembler, TensorStream
from ranks import run_ranks
from weight_sync_parts.agreement_world import heard
from weight_sync_parts.modules import make_engine, make_model, state_of_model, wrap
from weight_sync_parts.receivers import Loaded, in_threads

KINDS = {2: ("plain", "fsdp1"), 3: ("fsdp2",)}


@pytest.mark.parametrize("world_size", KINDS)
def test_receivers_have_the_models_weights(tmp_path: Path, world_size: int) -> None:
    ranks = run_ranks(world_size, everything, str(tmp_path), KINDS[world_size])
    for case, seen in ranks[0].items():
        assert [rank[case]["sent"] for rank in ranks] == ["nothing"] * world_size
        assert len(seen["ends"]) == RECEIVERS
        for outcome, version, dirty, tensors in seen["ends"]:
            assert (outcome, version, dirty) == ("nothing", 1, False), case
            assert len(tensors) == len(seen["names"])
            for name, tensor in tensors:
                assert torch.equal(tensor, seen["expected"][name]), (case, name)


def test_fastsfts_own_engine(tmp_path: Path) -> None:
    from tiny_models import write_model

    model = str(write_model(tmp_path / "model", "untied"))
    (sent, expected, ends), second = run_ranks(2, own_engine, str(tmp_path), model)
    assert sent == second[0] == "nothing" and len(ends) == 2
    for outcome, tensors in ends:
        received = dict(tensors)
        assert outcome == "nothing" and received.keys() == expected.keys()
        assert all(torch.equal(received[name], tensor) for name, tensor in expected.items())


def test_a_failure_in_one_group_is_heard_by_all(tmp_path: Path) -> None:
    first, second = run_ranks(2, faults, str(tmp_path))
    words = {"load": "receiver 2: OSError: out of memory", "plan": "tensor embed.weight is float32 [12, 4]"}
    for name, message in words.items():
        sent, ends = first[name]
        for outcome in (sent, second[name][0], ends[1][0]):
            assert message in outcome, (name, outcome)
        assert [end[2] for end in ends] == [0, 0]
    assert all(end[1] for end in first["load"][1])  # dirty: some rows had been loaded
    assert not any(end[1] for end in first["plan"][1])


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
def test_shares_cover_every_row_once(world_size: int) -> None:
    plan = SyncPlan(
        [("a", "float32", [7, 2]), ("b", "int64", []), ("c", "uint8", [0, 3]), ("d", "bfloat16", [2])]
    )
    values = [torch.arange(14.0).view(7, 2), torch.tensor(3), torch.empty(0, 3, dtype=torch.uint8)]
    values.append(torch.tensor([1.0, 2.0], dtype=torch.bfloat16))
    loaded: list[Any] = []
    joining, sent = ShardAssembler(plan, loaded.extend), 0
    for rank in reversed(range(world_size)):
        share = RowShard(plan, rank, world_size)
        rows = dict(zip(plan.names, values, strict=True))
        for name, begin in share.begins.items():
            count = share.plan.shapes[share.plan.names.index(name)][:1]
            part = rows[name] if begin is None else rows[name][begin : begin + count[0]]
            joining.loader(share)([(name, part)])
        sent += share.plan.total_bytes
    assert sent == plan.total_bytes
    assert {name: tensor.tolist() for name, tensor in loaded} == {
        name: tensor.tolist() for name, tensor in zip(plan.names, values, strict=True)
    }


@pytest.mark.parametrize(("mode", "group"), [("native_multiroot", object()), ("native", [object()])])
def test_the_wrong_kind_of_group_is_refused(mode: str, group: Any) -> None:
    with pytest.raises(ValueError, match=r"group: expected (a list of groups|one group)"):
        WeightReceiver(group, SyncPlan([("a", "uint8", [1])]), print, mode=mode)


class _OneByOne:
    """A source that yields each tensor in a unit of its own."""

    lends_memory = False

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        self._tensors = tensors

    def names(self) -> list[str]:
        return list(self._tensors)

    def sent_twice(self) -> dict[str, str]:
        return {}

    def whole(self) -> Any:
        return ([item] for item in self._tensors.items())


@pytest.mark.parametrize("empty", [1, 3])
def test_tensors_without_bytes_between_two_buckets_are_passed_over(empty: int) -> None:
    """No bucket has them, so nobody takes them from the stream."""
    first, last = torch.arange(4, dtype=torch.uint8), torch.arange(4, 8, dtype=torch.uint8)
    between = {f"empty.{number}": torch.empty(0, 3, dtype=torch.uint8) for number in range(empty)}
    tensors = {"first": first, **between, "last": last}
    plan = SyncPlan([(name, tensor.dtype, tensor.shape) for name, tensor in tensors.items()])
    assert [bucket.first for bucket in plan.buckets("tensor_batches", 4)] == [0, empty + 1]
    stream = TensorStream(cast(Any, _OneByOne(tensors)), plan)
    assert torch.equal(stream.take(0, 0)[0], first)
    (found,) = stream.take(empty + 1, empty + 1)
    assert torch.equal(found, last)
    stream.drain()


MODE = "native_multiroot"
RECEIVERS = 2
OPTIONS: dict[str, Any] = {"mode": MODE, "bucket_bytes": 96, "deadline_s": 30.0}
_numbers = itertools.count()


def run(
    folder: str, send: Callable[[Any], Any], plan: Any, loads: list[Any] | None = None, **options: Any
) -> tuple[str, list[Any]]:
    """`send(group)` on every rank: what it raised; on rank 0 also (receiver, what it heard, Loaded) each."""
    stores = [str(Path(folder, f"{next(_numbers)}-{root}")) for root in range(dist.get_world_size())]

    def join(member: int, root: int) -> WeightGroup:
        store = dist.FileStore(stores[root], RECEIVERS + 1)
        return WeightGroup(store, member, RECEIVERS + 1, timeout_s=30.0)

    def trainer() -> str:
        return heard(lambda: send(join(0, dist.get_rank())))

    ends: list[Any] = [None] * RECEIVERS

    def receiver(number: int) -> None:
        groups = [join(number + 1, root) for root in range(len(stores))]
        loaded = (loads or [Loaded() for _ in ends])[number]
        made = WeightReceiver(groups, plan, loaded, **{**OPTIONS, **options})
        ends[number] = (made, heard(made.receive), loaded)

    receivers = [functools.partial(receiver, n) for n in range(RECEIVERS)] if dist.get_rank() == 0 else []
    return in_threads([trainer, *receivers])[0], ends


def everything(_: Any, folder: str, kinds: tuple[str, ...]) -> dict[str, Any]:
    """Every wrapper, tied or not, with buffers where the source decides."""
    outcome: dict[str, Any] = {}
    for kind, tied in itertools.product(kinds, (False, True)):
        model = make_model(tied)
        expected = state_of_model(model)
        engine = make_engine(wrap(model, kind), kind)
        options = {**OPTIONS, "send_buffers": True}
        plan = sync_plan(engine, send_buffers=True)
        sent, ends = run(folder, lambda group: fsdp_sync_weight_nccl(engine, group, **options), plan)  # noqa: B023
        outcome[f"{kind}-{tied}"] = {
            "expected": expected,
            "names": plan.names,
            "sent": sent,
            "ends": [(e[1], e[0].version, e[0].dirty, e[2].tensors) for e in ends if e is not None],
        }
    return outcome


def own_engine(groups: dict[str, str], folder: str, model: str) -> Any:
    """fastsft's engine, sharded."""
    from tiny_models import make_engine as make_native

    native = make_native(
        Path(model), strategy="full_shard", gather_group=groups["gather_group"],
        reduce_group=groups["reduce_group"],
    )  # fmt: skip
    engine = FastsftEngine(SimpleNamespace(model=SimpleNamespace(engine=native), tokenizer=None))
    options = {**OPTIONS, "bucket_bytes": 1 << 12}
    plan = sync_plan(engine)
    sent, ends = run(
        folder, lambda group: fsdp_sync_weight_nccl(engine, group, **options), plan, bucket_bytes=1 << 12
    )
    expected = {name: tensor.clone() for name, tensor in engine.get_per_tensor_param()[0]}
    return sent, expected, [(e[1], e[2].tensors) for e in ends if e is not None]


def faults(_: Any, folder: str) -> dict[str, Any]:
    """What trainers and receivers hear when a receiver cannot load, has another plan, or another number of
    roots is there."""
    engine = make_engine(wrap(make_model(False), "fsdp2"), "fsdp2")
    other = sync_plan(make_engine(make_model(False, rows=12), "plain"))
    plan, found = sync_plan(engine), {}

    def send(group: Any) -> Any:
        return fsdp_sync_weight_nccl(engine, group, **OPTIONS)

    class Full(Loaded):
        def __call__(self, tensors: Any) -> None:
            super().__call__(tensors)
            if len(self.tensors) > 3:
                raise OSError("out of memory")

    for name, planned, loads in (("load", plan, [Loaded(), Full()]), ("plan", other, None)):
        sent, ends = run(folder, send, planned, loads, deadline_s=20.0)
        found[name] = sent, [(e[1], e[0].dirty, e[0].version) for e in ends if e is not None]
    return found
