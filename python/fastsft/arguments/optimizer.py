"""Optimizer, learning rate, and what shapes the gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol

from fastsft.arguments.support import refused, used

ScheduleName = Literal[
    "linear", "cosine", "cosine_with_restarts", "polynomial", "constant", "constant_with_warmup",
    "inverse_sqrt", "reduce_lr_on_plateau", "cosine_with_min_lr", "cosine_warmup_with_min_lr",
    "warmup_stable_decay",
]  # fmt: skip

# Values of --optim, and the core's optimizer of each.
OPTIMIZERS = {
    "adamw_torch": "adamw", "adamw_torch_fused": "adamw", "adamw_hf": "adamw", "adamw_apex_fused": "adamw",
    "sgd": "sgd", "adafactor": "adafactor", "adamw_8bit": "adamw_8bit", "adamw_bnb_8bit": "adamw_8bit",
}  # fmt: skip


class OptimizerFlags(Protocol):
    """Arguments that name an optimizer."""

    @property
    def optim(self) -> str: ...


class KeptFlags(OptimizerFlags, Protocol):
    """Arguments that say how many bytes it keeps."""

    @property
    def optim_dtype(self) -> str: ...


def optimizer_of(args: OptimizerFlags) -> str:
    """The core's name of the optimizer: adamw for all values of --optim that mean it."""
    return OPTIMIZERS[args.optim]


def kept_bytes(args: KeptFlags) -> float:
    """Optimizer state of a parameter in bytes; of adafactor's rows and columns the most that is likely."""
    moment = {"float32": 4, "bfloat16": 2}[args.optim_dtype]
    kinds = {"adamw": 2.0 * moment, "adamw_8bit": 2 + 8 / 256, "sgd": 0.0, "adafactor": 1.0}
    return kinds[optimizer_of(args)]


@dataclass
class OptimizerArguments:
    """The optimizer, its schedule, clipping, label smoothing, noise."""

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
        "adamw_torch, adamw_torch_fused, adamw_hf and adamw_apex_fused are the native AdamW; sgd, adafactor, "
        "and adamw_8bit or adamw_bnb_8bit (moments in 8 bits) are native, too; others raise",
    )  # fmt: skip
    optim_args: str | None = refused(
        None, "options of other optimizers", "leave it out: the optimizers that fastsft has read none"
    )
    optim_target_modules: list[str] | str | None = refused(
        None, "modules of GaLore, APOLLO, LOMO", "leave it out: the optimizer trains all parameters"
    )
    adafactor: bool = used(False, "old name of optim adafactor")
    label_smoothing_factor: float = used(0.0, "share of the target that all tokens get")
    neftune_noise_alpha: float | None = used(
        None,
        "noise on the embeddings in training",
        "uniform in +-alpha / sqrt(model_max_length * hidden_size)",
    )
