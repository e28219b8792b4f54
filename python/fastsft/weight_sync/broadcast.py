"""fsdp_sync_weight_nccl: whole weights to rollout engines, bucket by bucket, with deadlines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastsft.weight_sync import handshake
from fastsft.weight_sync.engine_state import EngineState, exclusive
from fastsft.weight_sync.modes import SyncOptions, sync_mode
from fastsft.weight_sync.plan import SyncPlan
from fastsft.weight_sync.row_shards import Share
from fastsft.weight_sync.save import parameter_dtype
from fastsft.weight_sync.sources import BroadcastSource, broadcast_source
from fastsft.weight_sync.tensor_stream import Feed, drained
from fastsft.weight_sync.transfer_agreement import Opening, check_grows
from fastsft.weight_sync.transport import Transport
from fastsft.weight_sync.validation import whole_number

DEFAULT_BUCKET_BYTES = 1 << 28


def fsdp_sync_weight_nccl(
    engine: Any,
    model_update_group: Any,
    *,
    mode: str = "trinity",
    save_dtype: str | None = None,
    send_buffers: bool = False,
    bucket_bytes: int = DEFAULT_BUCKET_BYTES,
    deadline_s: float = 600.0,
    version: int | None = None,
    handshakes: bool = False,
    checksum: bool = True,
    announce: Callable[[dict[str, Any]], Any] | None = None,
) -> int:
    """Broadcast the whole weights of `engine.module`; collective over the trainer ranks. Returns the version.

    Only trainer rank 0 belongs to `model_update_group` (a process group, or a `WeightGroup`), as its rank 0;
    elsewhere it may be None. mode: "trinity" (a broadcast a tensor), "vllm_packed", "sglang", "native", or
    "native_multiroot", for which every trainer rank gives a group of its own with all receivers.
    Names, order, dtypes and shapes are those of `sync_plan`: parameters, with `send_buffers` also persistent
    buffers; of an engine with `get_per_tensor_param`, unless FSDP1 wraps it, what that yields.

    deadline_s: of every single wait; past it RuntimeError, and the group has to be made again. version: must
    grow; None: one more than the last. handshakes: every mode begins with an agreement on plan and version,
    as `WeightReceiver(handshakes=True)` expects. When one rank fails all trainer ranks raise its reason.
    Contract: docs/spec/weight_sync.md, sections 1.3 and 4.4.
    """
    with (
        Opening(engine, "broadcast", "sending weights", deadline_s) as opening,
        exclusive(engine, deadline_s) as state,
    ):
        wire = sync_mode(mode)
        bucket_bytes = whole_number("bucket_bytes", bucket_bytes)
        version = _agreed_version(opening, state, version, {"mode": mode, "bucket_bytes": bucket_bytes})
        source = broadcast_source(engine, state)
        plan = source.plan(parameter_dtype(save_dtype), buffers=send_buffers)
        opening.agree_on_plan(plan)
        share = Share(plan, source.rank, source.world_size) if wire.every_rank else None
        feed = Feed(source, plan, share)
        error: BaseException | None = None
        with opening.transfer():
            try:
                if source.rank == 0 or wire.every_rank:
                    options = SyncOptions(bucket_bytes, version, announce, checksum)
                    transport = _transport(model_update_group, deadline_s, source)
                    header = _header(mode, options, source) if wire.handshakes or handshakes else None
                    with transport.transfer():
                        if header is not None:
                            handshake.offer(transport, plan, header)
                        wire.send(feed, plan if share is None else share.plan, transport, options)
                    state.sent = version
            except Exception as failure:
                error = failure
            error = drained(feed, error)
        try:
            opening.settle(f"sending version {version}", error)
        finally:
            error = None  # it holds this frame, and with a cycle would keep the group until a full collection
        state.broadcast = version
    return version


def _agreed_version(opening: Opening, state: EngineState, version: int | None, facts: dict[str, Any]) -> int:
    """The one given, or one that is new to all ranks and receivers, also after a sync that failed late."""
    if version is not None:
        version = whole_number("version", version)
        check_grows(f"sending version {version}", version, state.broadcast)
    posts = opening.agree({"version": version, **facts}, known=max(state.broadcast, state.sent))
    return version if version is not None else 1 + max(post["known"] for post in posts)


def _header(mode: str, options: SyncOptions, source: BroadcastSource) -> dict[str, Any]:
    """Facts that receivers compare with what they expect; with the root only where there are several."""
    header = {"mode": mode, "version": options.version, "bucket_bytes": options.bucket_bytes}
    if sync_mode(mode).every_rank:
        header |= {"root": source.rank, "roots": source.world_size}
    return header


def sync_plan(
    engine: Any, *, save_dtype: str | None = None, send_buffers: bool = False, deadline_s: float = 600.0
) -> SyncPlan:
    """The plan of what `fsdp_sync_weight_nccl` with these options sends, for receivers; collective.

    ValueError, on every rank, when ranks have different models, naming the rank and the first difference.
    deadline_s: how long ranks wait for each other.
    """
    with (
        Opening(engine, "plan", "planning", deadline_s) as opening,
        exclusive(engine, deadline_s) as state,
    ):
        opening.agree({"save_dtype": save_dtype, "send_buffers": send_buffers})
        source = broadcast_source(engine, state)
        source.refresh()
        plan = source.plan(parameter_dtype(save_dtype), buffers=send_buffers)
        opening.agree_on_plan(plan)
        return plan


def _transport(group: Any, deadline_s: float, source: BroadcastSource) -> Transport:
    if group is None:
        raise ValueError(f"model_update_group: expected a group on trainer rank {source.rank}, got None")
    transport = Transport(group, deadline_s, source.wire_device(group))
    if transport.rank != 0:
        raise ValueError(
            f"model_update_group: expected trainer rank {source.rank} as its rank 0, got {transport.rank}"
        )
    return transport
