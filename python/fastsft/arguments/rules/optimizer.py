"""Optimizer, warm-up, label smoothing."""

from __future__ import annotations

import math
from typing import Any

from fastsft.arguments.fields import ArgumentFields
from fastsft.arguments.given import was_given
from fastsft.arguments.json_values import json_object
from fastsft.arguments.optimizer import OPTIMIZERS, optimizer_of
from fastsft.runtime.messages import warn_once

# Options of schedules.
_NOT_NEGATIVE = {
    "min_lr", "min_lr_rate", "lr_end", "power", "num_cycles", "timescale", "patience", "cooldown", "factor",
    "eps", "num_decay_steps", "num_stable_steps", "min_lr_ratio", "warmup_lr_rate",
}  # fmt: skip


def settle_optimizer(args: ArgumentFields) -> None:
    """An optimizer that there is; a smoothing below 1; warm-up is steps or a share."""
    _settle_name(args)
    if not 0 <= args.label_smoothing_factor < 1:
        raise ValueError(
            f"--label_smoothing_factor: expected 0 or more and below 1, got {args.label_smoothing_factor}"
        )
    if args.neftune_noise_alpha is not None and args.neftune_noise_alpha < 0:
        raise ValueError(f"--neftune_noise_alpha: expected 0 or more, got {args.neftune_noise_alpha}")
    if args.lr_scheduler_type == "reduce_lr_on_plateau" and args.eval_strategy == "no":
        raise ValueError("--lr_scheduler_type reduce_lr_on_plateau needs --eval_strategy steps or epoch")
    if args.lr_scheduler_kwargs is not None:
        args.lr_scheduler_kwargs = json_object("lr_scheduler_kwargs", args.lr_scheduler_kwargs)
        _check_options(args.lr_scheduler_kwargs)
    _settle_warmup(args)
    if args.max_grad_norm is None:  # off, as in transformers
        args.max_grad_norm = 0.0


def _check_options(options: dict[str, Any]) -> None:
    for name in _NOT_NEGATIVE & options.keys():
        value = options[name]
        if isinstance(value, int | float) and not 0 <= value < math.inf:
            raise ValueError(f"--lr_scheduler_kwargs: {name}: expected 0 or more, got {value}")


def _settle_name(args: ArgumentFields) -> None:
    if args.adafactor:
        if was_given(args, "optim") and args.optim != "adafactor":
            raise ValueError(
                f"--adafactor True is the old name of --optim adafactor, which is {args.optim}; give one of "
                "the two"
            )
        warn_once("--adafactor is an old name; --optim adafactor is used")
        args.optim = "adafactor"
    if args.optim not in OPTIMIZERS:
        named = ", ".join(name for name in OPTIMIZERS if name != "adamw_torch")
        raise ValueError(
            f"fastsft does not support --optim {args.optim}; use --optim adamw_torch, or {named}"
        )
    names_dtype = args.optim_dtype != "float32" or was_given(args, "optim_dtype")
    if optimizer_of(args) != "adamw" and names_dtype:
        raise ValueError(
            f"--optim_dtype {args.optim_dtype} is about AdamW's moments, which --optim {args.optim} does not "
            "have; leave it out"
        )


def _settle_warmup(args: ArgumentFields) -> None:
    args.warmup_ratio = args.warmup_ratio or 0.0
    if not 0 <= args.warmup_ratio <= 1:
        raise ValueError(f"--warmup_ratio: expected a share from 0 to 1, got {args.warmup_ratio}")
    if args.warmup_steps < 0 or (args.warmup_steps >= 1 and args.warmup_steps != int(args.warmup_steps)):
        raise ValueError(
            f"--warmup_steps: expected a number of steps or a share below 1, got {args.warmup_steps}"
        )
    if args.warmup_steps >= 1 or args.warmup_steps == 0:
        args.warmup_steps = int(args.warmup_steps)
    if args.warmup_steps and args.warmup_ratio:
        warn_once("--warmup_steps and --warmup_ratio are both given; --warmup_steps counts")
    elif args.warmup_ratio and was_given(args, "warmup_steps"):
        warn_once(f"--warmup_steps 0 names no steps: --warmup_ratio {args.warmup_ratio} counts")
