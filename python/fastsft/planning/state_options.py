"""The core's options of parameters, gradients and optimizer state, made from the arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from fastsft.arguments.optimizer import OptimizerFlags, optimizer_of
from fastsft.arguments.precision import FormatFlags, compute_dtype, state_flags

if TYPE_CHECKING:
    from fastsft import _C


class StateArguments(FormatFlags, OptimizerFlags, Protocol):
    """Arguments that say how the state of a run is held."""

    @property
    def world_size(self) -> int: ...
    @property
    def sharding_strategy(self) -> str: ...
    @property
    def offload(self) -> bool: ...


def state_options(args: StateArguments) -> _C.StateOptions:
    """The one object that the engine and the memory plan read."""
    return default_state_options().replace(
        strategy=args.sharding_strategy if args.world_size > 1 else "no_shard",
        optimizer=optimizer_of(args),
        compute_dtype=compute_dtype(args),
        offload=args.offload,
        sync_each_batch=True,  # the memory plan chooses
        **state_flags(args),
    )


def default_state_options() -> _C.StateOptions:
    """One rank, float32, nothing on the host."""
    from fastsft import _C

    return _C.StateOptions()
