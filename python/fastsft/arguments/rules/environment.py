"""Checks that the environment of `accelerate launch` and other launchers agrees with the flags."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from fastsft.arguments.fields import ArgumentFields
from fastsft.arguments.json_values import truth

# accelerate's names of strategies, and their numbers of older releases.
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
    args: ArgumentFields, rank_of_flag: int, environ: Mapping[str, str] | None = None
) -> None:
    """ValueError when accelerate's variables, or --local_rank, ask for what the flags do not say.

    rank_of_flag: --local_rank as it was given. Source: docs/spec/trainer_arguments.md, section 9.
    """
    here = os.environ if environ is None else environ
    env = launched_environment() if environ is None else environ
    if rank_of_flag > 0 and not {"RANK", "WORLD_SIZE"} <= set(here) and "SLURM_STEP_NUM_TASKS" not in here:
        raise ValueError(
            f"--local_rank {rank_of_flag}: RANK and WORLD_SIZE are not in the environment, so that this "
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
    """The environment; that of the start where transformers was imported, whose arguments write into it."""
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
