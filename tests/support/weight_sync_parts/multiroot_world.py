"""Trainer ranks that each send their own rows; the receivers are threads of rank 0's process."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch.distributed as dist

from fastsft.weight_sync import WeightGroup, WeightReceiver, fsdp_sync_weight_nccl, sync_plan
from fastsft.weight_sync.engine import FastsftEngine
from weight_sync_parts.agreement_world import heard
from weight_sync_parts.modules import make_engine, make_model, state_of_model, wrap
from weight_sync_parts.receivers import Loaded, in_threads

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
