"""The core's options of parameters, gradients and optimizer state, made from the arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastsft.arguments.optimizer import optimizer_of
from fastsft.arguments.precision import compute_dtype, state_flags

if TYPE_CHECKING:
    from fastsft import _C


def state_options(args: Any) -> _C.StateOptions:
    """The one object that the engine and the memory plan read.

    args: TrainingArguments, or what has their bf16, fp16, optim, world_size, sharding_strategy, offload and
    STATE_FLAGS.
    """
    return default_state_options().replace(
        strategy=args.sharding_strategy if args.world_size > 1 else "no_shard",
        optimizer=optimizer_of(args),
        compute_dtype=compute_dtype(args),
        offload=args.offload,
        **state_flags(args),
    )


def default_state_options() -> _C.StateOptions:
    """One rank, float32, nothing on the host."""
    from fastsft import _C

    return _C.StateOptions()
