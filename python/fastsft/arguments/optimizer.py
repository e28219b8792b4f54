"""Optimizer, learning rate, and what shapes the gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from fastsft.arguments.support import refused, used

ScheduleName = Literal[
    "linear", "cosine", "cosine_with_restarts", "polynomial", "constant", "constant_with_warmup",
    "inverse_sqrt", "reduce_lr_on_plateau", "cosine_with_min_lr", "cosine_warmup_with_min_lr",
    "warmup_stable_decay",
]  # fmt: skip


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
