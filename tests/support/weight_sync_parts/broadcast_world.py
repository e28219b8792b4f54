"""What the trainer ranks of a test of broadcasts do; the receivers are threads of rank 0's process."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from fastsft.weight_sync import fsdp_sync_weight_nccl, sync_plan
from weight_sync_parts.modules import make_engine, make_model, state_of_model, wrap
from weight_sync_parts.receivers import PATIENCE_S, sync
from weight_sync_parts.save_world import KINDS

MODES = ("trinity", "vllm_packed", "sglang", "native")


def everything(_: Any, kinds: tuple[str, ...] = KINDS) -> dict[str, Any]:
    """Every wrapper, tied or not, in every mode, twice: what the receivers loaded the second time."""
    outcome: dict[str, Any] = {}
    for kind in kinds:
        for tied in (False, True):
            model = make_model(tied)
            expected = state_of_model(model)
            parameters = [name for name, _ in model.named_parameters()]
            engine = make_engine(wrap(model, kind), kind)
            buffers = kind.startswith("fsdp1")
            plan = sync_plan(engine, send_buffers=buffers)
            narrow = sync_plan(engine)
            received = {mode: _both_times(engine, mode, plan, buffers) for mode in MODES}
            outcome[f"{kind}-{tied}"] = {
                "expected": expected,
                "parameters": parameters,
                "plan": (plan.names, plan.tied),
                "without buffers": narrow.names,
                "received": received,
            }
    return outcome


def _both_times(engine: Any, mode: str, plan: Any, buffers: bool) -> Any:
    received = None
    for _ in range(2):

        def send(group: Any) -> int:
            return fsdp_sync_weight_nccl(
                engine, group, mode=mode, send_buffers=buffers, bucket_bytes=96, deadline_s=PATIENCE_S
            )

        if dist.get_rank() == 0:
            version, ends = sync(send, plan, mode=mode, bucket_bytes=96, deadline_s=PATIENCE_S)
            received = [(version, outcome, loaded.tensors, r.dirty) for r, outcome, loaded in ends]
        else:
            version = send(None)
    return received


def failing(_: Any) -> list[str]:
    """A gather that fails on rank 0 only, half way: every trainer rank raises, and so does the receiver."""
    from fastsft.weight_sync.tensor_stream import TensorStream

    heard = []
    engine = make_engine(wrap(make_model(False), "fsdp1"), "fsdp1")
    plan = sync_plan(engine)
    take = TensorStream.take

    def broken(self: Any, first: int, last: int) -> Any:
        if last > 6:
            raise MemoryError("no room for a bucket")
        return take(self, first, last)

    TensorStream.take = broken  # type: ignore[method-assign]

    def send(group: Any) -> int:
        return fsdp_sync_weight_nccl(engine, group, mode="native", bucket_bytes=96, deadline_s=PATIENCE_S)

    if dist.get_rank() == 0:
        error, ends = sync(send, plan, mode="native", bucket_bytes=96, deadline_s=PATIENCE_S)
        heard = [str(error), *[str(outcome) for _, outcome, _ in ends], str(all(r.dirty for r, _, _ in ends))]
    else:
        try:
            send(None)
        except RuntimeError as error:
            heard = [str(error)]
    TensorStream.take = take  # type: ignore[method-assign]
    return heard


def other_model(_: Any) -> str:
    """Rank 1 has another model than rank 0."""
    model = make_model(False, rows=11 + dist.get_rank())
    try:
        sync_plan(make_engine(model, "plain"))
    except ValueError as error:
        return str(error)
    return "planned"
