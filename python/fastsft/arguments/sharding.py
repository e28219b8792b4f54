"""Distributed and sharding arguments."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from fastsft.arguments.support import inert, refused, used

Backend = Literal["nccl", "gloo", "mpi", "ccl", "xccl", "hccl", "cncl", "mccl"]
_NO_DDP = "there is no DDP wrapper"


@dataclass
class ShardingArguments:
    """Launch, process groups, FSDP, DeepSpeed."""

    local_rank: int = used(-1, "rank on this machine, set by the launcher")
    ddp_backend: Backend | None = used(None, "gloo or nccl; default by device", "others raise")
    ddp_timeout: int = used(1800, "seconds that a collective may take")
    ddp_find_unused_parameters: bool | None = inert(None, "a setting of DDP", _NO_DDP)
    ddp_bucket_cap_mb: int | None = inert(None, "a setting of DDP", _NO_DDP)
    ddp_broadcast_buffers: bool | None = inert(None, "a setting of DDP", _NO_DDP)
    ddp_static_graph: bool | None = inert(None, "a setting of DDP", _NO_DDP)
    xpu_backend: str | None = refused(None, "backend of XPU", "use --ddp_backend nccl or gloo")
    sharded_ddp: str = refused("", "sharding of fairscale", "use --fsdp full_shard")
    fsdp: list[str] | str | None = used(
        None, "sharding",
        "a strategy, such as full_shard or hybrid_shard, with offload, auto_wrap (docs/sharding.md)",
    )  # fmt: skip
    fsdp_config: dict[str, Any] | str | None = used(None, "a JSON file or object")
    sync_each_batch: bool | None = used(
        None,
        "reduce sharded float32 gradients in every micro-batch; False: keep them whole, 4 bytes per "
        "parameter, and reduce them once per step; default: once where steps accumulate and memory allows",
    )
    fsdp_min_num_params: int = inert(0, "parameters of a unit", "the engine shards per decoder layer")
    fsdp_transformer_layer_cls_to_wrap: str | None = inert(
        None, "class of a decoder layer", "the engine shards per decoder layer", quiet=True
    )
    deepspeed: dict[str, Any] | str | None = used(None, "a DeepSpeed JSON file or object", "docs/sharding.md")
    tp_size: int | None = refused(0, "ranks of tensor parallelism", "leave it unset", neutral=(1,))
    parallelism_config: dict[str, Any] | str | None = refused(
        None, "tensor, context and sequence parallelism", "leave it unset: ranks share conversations"
    )
    _n_gpu: int = field(init=False, repr=False, default=-1)
