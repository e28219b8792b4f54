"""Resolves the arguments about device, dtypes and sharding, and checks the environment from launchers."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from fastsft.arguments.device_fields import check_activations, check_formats
from fastsft.arguments.engine_flags import (
    check_reductions,
    fsdp_settings,
    fsdp_tokens,
    strategy_of,
)
from fastsft.arguments.fields import ArgumentFields
from fastsft.arguments.given import was_given
from fastsft.arguments.values import json_object, truth
from fastsft.runtime.devices import check_fp8_device, choose_device
from fastsft.runtime.launch import launch
from fastsft.runtime.messages import warn_once

# The dtypes that arguments have requested in this process so far. accelerate would keep using the first
# dtype.
requested_formats: set[str] = set()


def resolve_precision(args: ArgumentFields) -> None:
    """Check the dtypes, and choose the device."""
    check_formats(args)
    check_activations(args)
    steps = args.torch_empty_cache_steps
    if steps is not None and (not isinstance(steps, int) or steps < 1):
        raise ValueError(f"--torch_empty_cache_steps: expected an integer above 0, got {steps}")
    if args.gradient_checkpointing_kwargs is not None:
        args.gradient_checkpointing_kwargs = json_object(
            "gradient_checkpointing_kwargs", args.gradient_checkpointing_kwargs
        )
    if args.no_cuda and not args.use_cpu and was_given(args, "use_cpu"):
        raise ValueError(
            "--no_cuda True is the old name of --use_cpu True, and --use_cpu is False; give one of the two"
        )
    args.use_cpu = args.use_cpu or args.no_cuda
    requested_formats.update(name for name in ("bf16", "fp16") if getattr(args, name))
    args._device = choose_device(args.use_cpu)
    check_fp8_device(args._device, args.fp8)
    if args._device == "cpu" and args.tf32:
        warn_once("--tf32 True has no effect on the CPU: products of fp32 matrices stay fp32")


def resolve_sharding(args: ArgumentFields) -> None:
    """Read --fsdp and fsdp_config, check the backend, and set the local rank."""
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


# accelerate's strategy name, or its number in older releases -> the engine's strategy
_STRATEGIES = {
    "FULL_SHARD": "full_shard", "1": "full_shard", "SHARD_GRAD_OP": "shard_grad_op", "2": "shard_grad_op",
    "NO_SHARD": "no_shard", "3": "no_shard", "HYBRID_SHARD": "hybrid_shard", "4": "hybrid_shard",
    "HYBRID_SHARD_ZERO2": "hybrid_shard_zero2", "5": "hybrid_shard_zero2",
}  # fmt: skip
_REFUSED = {
    "ACCELERATE_USE_MEGATRON_LM": "Megatron-LM",
    "ACCELERATE_USE_TP": "tensor parallelism",
    "ACCELERATE_USE_PARALLELISM_CONFIG": "accelerate's parallelism",
    "ACCELERATE_USE_SAGEMAKER": "SageMaker",
}


def check_environment(
    args: ArgumentFields, local_rank: int, environ: Mapping[str, str] | None = None
) -> None:
    """Raise ValueError if accelerate's environment variables, or --local_rank, contradict the flags.

    local_rank: the value of --local_rank as given. See docs/spec/trainer_arguments.md, section 9.
    """
    here = os.environ if environ is None else environ
    env = launched_environment() if environ is None else environ
    if local_rank > 0 and not {"RANK", "WORLD_SIZE"} <= set(here) and "SLURM_STEP_NUM_TASKS" not in here:
        raise ValueError(
            f"--local_rank {local_rank}: RANK and WORLD_SIZE are not in the environment, so that this "
            "process does not know its place; start the ranks with torchrun, deepspeed or srun"
        )
    for name, what in _REFUSED.items():
        if truth(env.get(name, "")):
            raise ValueError(f"fastsft does not support {what} ({name} is set); unset it, and use --fsdp")
    for name, given, flag in (
        ("ACCELERATE_USE_FSDP", bool(args.fsdp), "--fsdp full_shard"),
        ("ACCELERATE_USE_DEEPSPEED", bool(args.deepspeed), "--deepspeed FILE"),
        ("ACCELERATE_USE_CPU", args.use_cpu or args.device.type == "cpu", "--use_cpu True"),
    ):
        if truth(env.get(name, "")) and not given:
            raise ValueError(
                f"{name} is set by accelerate, but not the flag for it; add {flag}, or start with torchrun"
            )
    _check_precision(args, env)
    if args.fsdp and truth(env.get("ACCELERATE_USE_FSDP", "")):
        _check_strategy(args, env)


def launched_environment() -> Mapping[str, str]:
    """Return the environment variables.

    transformers changes some variables. If transformers is imported, return the values at the start of the
    process.
    """
    start = Path("/proc/self/environ")
    if "transformers" not in sys.modules or not start.exists():
        return os.environ
    pairs = start.read_text(encoding="utf-8", errors="surrogateescape").split("\0")
    return dict(pair.split("=", 1) for pair in pairs if "=" in pair)


def _check_precision(args: ArgumentFields, env: Mapping[str, str]) -> None:
    precision = env.get("ACCELERATE_MIXED_PRECISION", "no").lower()
    if precision not in ("no", "bf16", "fp16"):
        raise ValueError(
            f"fastsft does not support ACCELERATE_MIXED_PRECISION {precision}; use bf16 with --bf16 True"
        )
    if precision != "no" and not getattr(args, precision):
        raise ValueError(
            f"ACCELERATE_MIXED_PRECISION is {precision}, but --{precision} is False; add --{precision} True, "
            "or start with torchrun; where an earlier TrainingArguments of the kernel has set it, run "
            'os.environ.pop("ACCELERATE_MIXED_PRECISION")'
        )


def _check_strategy(args: ArgumentFields, env: Mapping[str, str]) -> None:
    word = env.get("FSDP_SHARDING_STRATEGY") or env.get("FSDP_RESHARD_AFTER_FORWARD", "")
    strategy = _STRATEGIES.get(word.upper())
    if strategy is not None and strategy != args.sharding_strategy:
        raise ValueError(
            f"accelerate's FSDP_SHARDING_STRATEGY is {word}, but --fsdp says {args.sharding_strategy}; make "
            f"them equal, or start with torchrun"
        )
    if truth(env.get("FSDP_OFFLOAD_PARAMS", "")) and not args.offload:
        raise ValueError('accelerate\'s FSDP_OFFLOAD_PARAMS is true; use --fsdp "full_shard offload"')
