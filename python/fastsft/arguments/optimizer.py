"""Optimizer, learning rate, and what shapes the gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from fastsft.arguments.json_values import json_object
from fastsft.arguments.meaning import refused, used
from fastsft.notices import warn_once

if TYPE_CHECKING:
    from fastsft.arguments.training import TrainingArguments

ScheduleName = Literal[
    "linear", "cosine", "cosine_with_restarts", "polynomial", "constant", "constant_with_warmup",
    "inverse_sqrt", "reduce_lr_on_plateau", "cosine_with_min_lr", "cosine_warmup_with_min_lr",
    "warmup_stable_decay",
]  # fmt: skip

_ADAMW = ("adamw_torch", "adamw_torch_fused", "adamw_hf", "adamw_apex_fused")


@dataclass
class OptimizerArguments:
    """AdamW, its schedule, clipping, label smoothing, noise."""

    learning_rate: float = used(5e-5, "peak learning rate")
    weight_decay: float = used(0.0, "decoupled, of matrices and embeddings")
    adam_beta1: float = used(0.9, "decay of the first moment")
    adam_beta2: float = used(0.999, "decay of the second moment")
    adam_epsilon: float = used(1e-8, "added to the square root of the second moment")
    max_grad_norm: float = used(1.0, "clip the global L2 norm; 0 is off")
    lr_scheduler_type: ScheduleName = used("linear", "schedule of the learning rate")
    lr_scheduler_kwargs: dict[str, Any] | str | None = used(None, "its options, a JSON object")
    warmup_ratio: float | None = used(0.0, "share of all steps that warm up")
    warmup_steps: float = used(0, "steps, or a share of all steps when below 1")
    optim: str = used(
        "adamw_torch", "optimizer",
        "adamw_torch, adamw_torch_fused, adamw_hf and adamw_apex_fused are the native AdamW; others raise",
    )  # fmt: skip
    optim_args: str | None = refused(None, "options of other optimizers", "leave it out: AdamW has its flags")
    optim_target_modules: list[str] | str | None = refused(
        None, "modules of GaLore, APOLLO, LOMO", "leave it out: AdamW trains all parameters"
    )
    adafactor: bool = refused(False, "old name of optim adafactor", "use --optim adamw_torch")
    label_smoothing_factor: float = used(0.0, "share of the target that all tokens get")
    neftune_noise_alpha: float | None = used(
        None,
        "noise on the embeddings in training",
        "uniform in +-alpha / sqrt(model_max_length * hidden_size)",
    )


def settle_optimizer(args: TrainingArguments) -> None:
    """AdamW only; a smoothing below 1; warm-up is steps or a share."""
    if args.optim not in _ADAMW:
        raise ValueError(f"fastsft does not support --optim {args.optim}; use --optim adamw_torch")
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
    _settle_warmup(args)
    if args.max_grad_norm is None:  # off, as in transformers
        args.max_grad_norm = 0.0


def _settle_warmup(args: TrainingArguments) -> None:
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
