"""Protocols for other programs' objects, weight sync errors, and checks on numeric arguments."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from typing import SupportsIndex

    import torch


class Engine(Protocol):
    """A trainer's engine: veRL's or a `FastsftEngine`.

    The attribute `checkpoint_manager.processing_class` is optional.
    """

    @property
    def module(self) -> Any:
        """The trainer's sharded model."""


class YieldingEngine(Engine, Protocol):
    """An engine that itself chooses the tensors to send."""

    def get_per_tensor_param(self) -> tuple[Iterable[tuple[str, torch.Tensor]], object]:
        """Return an iterable of (name, tensor), and a second value that weight sync ignores."""


class Coordinator(Protocol):
    """Trinity's coordinator, or a `CheckpointCoordinator`, which also has `attach`."""

    def save_async(
        self, name: str, save_fn: Callable[[], object], global_step: int, is_state_dict: bool = False
    ) -> object:
        """Call `save_fn` on a thread."""


class Logger(Protocol):
    """A logger such as `logging.Logger`."""

    def info(self, message: str, /, *args: object) -> object:
        """Log a message with %-arguments."""


class Work(Protocol):
    """A process group's operation that is in flight."""

    def wait(self, timeout: timedelta, /) -> object:
        """Wait for the operation. RuntimeError if it fails or does not end within `timeout`."""

    def is_completed(self) -> bool:
        """Return True if the operation has ended, with or without success."""


class Group(Protocol):
    """The process group methods that a Transport uses."""

    def rank(self) -> int: ...

    def size(self) -> int: ...

    def broadcast(self, tensors: list[torch.Tensor], options: object, /) -> Work: ...

    def allgather(
        self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], options: object, /
    ) -> Work: ...

    def abort(self) -> None: ...


class ReplacedError(RuntimeError):
    """The outcome if a save was replaced by a later save before it began. This is not a failure."""


_MARK = "_fastsft_reported"


def raise_once(error: BaseException) -> None:
    """Raise `error`, unless an earlier call has raised it."""
    if not getattr(error, _MARK, False):
        setattr(error, _MARK, True)
        raise error


def whole_number(what: str, value: SupportsIndex) -> int:
    """Return a step, version or size as an `int`.

    ValueError unless it is a Python or NumPy integer that is at least 0.
    """
    try:
        number = operator.index(value)
    except TypeError:
        number = -1
    if not 0 <= number < 1 << 63:
        raise ValueError(f"{what}: expected a whole number from 0 on, got {value!r}")
    return number
