"""fsdp_upload_state_dict: the whole weights to a Synchronizer, through memory."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastsft.weight_sync import remote
from fastsft.weight_sync.engine_state import exclusive
from fastsft.weight_sync.exchange import skip
from fastsft.weight_sync.plan import SyncPlan
from fastsft.weight_sync.save import parameter_dtype
from fastsft.weight_sync.sources import state_source
from fastsft.weight_sync.tensor_stream import Feed, drained
from fastsft.weight_sync.transfer_agreement import Opening, check_grows
from fastsft.weight_sync.validation import whole_number

if TYPE_CHECKING:
    import torch

PACKED_CALL = "set_packed_model_state_dict"


def fsdp_upload_state_dict(
    engine: Any,
    synchronizer: Any,
    global_step: int,
    logger: Any,
    *,
    save_dtype: str | None = None,
    bucket_bytes: int = 1 << 28,
    deadline_s: float = 600.0,
) -> None:
    """Give the whole weights of `engine.module` to `synchronizer`, as version `global_step`; collective.

    Step 0: nothing, on every rank. Else rank 0 waits until the synchronizer (a Ray actor's handle, or an
    object) has them, and returns when all ranks have come here. A synchronizer with
    `set_packed_model_state_dict`, as ours, gets a plan and a few byte arrays of at most `bucket_bytes` or one
    tensor; any other `set_model_state_dict(dict of CPU tensors, step)`.

    save_dtype: of parameters; None keeps each tensor's own. deadline_s: how long rank 0 waits for an actor's
    answer, and ranks for each other before anything moves. ValueError when the step is not newer than the
    last one, or when ranks have different steps or models, naming the first difference; RuntimeError
    (ValueError where that was the failure) on every rank when one failed. Contract: docs/spec/weight_sync.md,
    sections 1.2 and 4.3.
    """
    if global_step == 0:
        skip("upload")
        return
    what = f"uploading step {global_step}"
    with Opening(engine, "upload", what, deadline_s) as opening, exclusive(engine, deadline_s) as state:
        global_step = whole_number("global_step", global_step)
        bucket_bytes = whole_number("bucket_bytes", bucket_bytes)
        check_grows(what, global_step, state.uploaded)
        opening.agree({"step": global_step})
        source = state_source(engine, state)
        source.refresh()
        plan = source.plan(parameter_dtype(save_dtype))
        opening.agree_on_plan(plan)
        error: BaseException | None = None
        feed = Feed(source, plan)
        with opening.transfer():
            try:
                if source.rank == 0:
                    _send(feed, plan, _Receiving(synchronizer, global_step, deadline_s), bucket_bytes)
            except Exception as failure:
                error = failure
            error = drained(feed, error)
        try:
            opening.settle(what, error)
        finally:
            error = None  # it holds this frame: no cycle
        state.uploaded = global_step
    logger.info("[FSDP] weights uploaded to the Synchronizer: step=%s", global_step)


@dataclass(frozen=True)
class _Receiving:
    """The synchronizer, and the version that it gets."""

    synchronizer: Any
    step: int
    deadline_s: float

    def call(self, name: str, *weights: Any) -> None:
        remote.call(self.synchronizer, name, *weights, self.step, deadline_s=self.deadline_s)


def _send(feed: Feed, plan: SyncPlan, receiving: _Receiving, bucket_bytes: int) -> None:
    _check_capacity(receiving.synchronizer, plan.total_bytes)
    name = "set_model_state_dict"
    weights: tuple[Any, ...]
    if hasattr(receiving.synchronizer, PACKED_CALL):
        name, weights = PACKED_CALL, (plan.to_json(), bucket_bytes, _packed(feed, plan, bucket_bytes))
    else:
        weights = (_whole(feed, plan),)
    feed.drain()  # tied tensors that differ must be known before anybody loads them
    receiving.call(name, *weights)


def _whole(feed: Feed, plan: SyncPlan) -> dict[str, torch.Tensor]:
    state_dict = {}
    for number, name in enumerate(plan.names):
        (tensor,) = feed.take(number, number)
        state_dict[name] = tensor.to("cpu", plan.dtypes[number], copy=True).contiguous()
    return state_dict


def _packed(feed: Feed, plan: SyncPlan, bucket_bytes: int) -> list[Any]:
    import torch

    from fastsft import _C

    buffers = []
    for bucket in plan.buckets("tensor_batches", bucket_bytes):
        tensors = feed.take(bucket.first, bucket.last)
        buffer = torch.empty(bucket.bytes, dtype=torch.uint8)
        _C.pack_bucket(plan.native, bucket, bucket.first, tensors, buffer)
        buffers.append(buffer.numpy())
    return buffers


def _check_capacity(synchronizer: Any, needed: int) -> None:
    """RuntimeError when Ray's object store cannot hold the weights; it would spill, or hang."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized() or not remote.is_actor(synchronizer):
        return
    capacity = ray.cluster_resources().get("object_store_memory")
    if capacity is not None and capacity < needed:
        raise RuntimeError(
            f"the weights have {needed} bytes, Ray's object store {capacity:.0f}; start Ray with a larger "
            "object_store_memory, or upload with save_dtype='bfloat16'"
        )
