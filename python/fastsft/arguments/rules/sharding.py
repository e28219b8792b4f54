"""Words of FSDP, the backend, the rank on this machine."""

from __future__ import annotations

from fastsft.arguments.fields import ArgumentFields
from fastsft.arguments.sharding_arguments import (
    check_reductions,
    fsdp_settings,
    fsdp_tokens,
    strategy_of,
)
from fastsft.runtime.launch import launch
from fastsft.runtime.messages import warn_once


def settle_sharding(args: ArgumentFields) -> None:
    """Words and settings of FSDP; the rank on this machine."""
    if args.ddp_backend not in (None, "gloo", "nccl"):
        raise ValueError(f"fastsft does not support --ddp_backend {args.ddp_backend}; use gloo or nccl")
    if args.device.type == "cpu" and args.ddp_backend == "nccl":
        warn_once("--ddp_backend nccl has no effect on the CPU: ranks communicate through gloo")
    args.fsdp = fsdp_tokens(args.fsdp)
    strategy_of(args.fsdp)
    args.fsdp_config = fsdp_settings(args.fsdp_config)
    if args.gradient_checkpointing and args.fsdp_config.get("activation_checkpointing"):
        raise ValueError(
            "activation_checkpointing in fsdp_config and --gradient_checkpointing do the same; use one"
        )
    check_reductions(args)
    args.local_rank, args._n_gpu = launch().local_rank, args.n_gpu
