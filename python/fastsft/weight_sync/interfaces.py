"""Interfaces of other programs' objects that weight sync uses, its errors, and checks of numbers."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from typing import SupportsIndex

    import torch


class Engine(Protocol):
    """A trainer's engine, veRL's or a `FastsftEngine`, perhaps with `checkpoint_manager.processing_class`."""

    @property
    def module(self) -> Any:
        """The sharded model of the trainer."""


class YieldingEngine(Engine, Protocol):
    """An engine that chooses the sent tensors itself."""

    def get_per_tensor_param(self) -> tuple[Iterable[tuple[str, torch.Tensor]], object]:
        """Return an iterator of (name, tensor), and facts that weight sync does not use."""


class Coordinator(Protocol):
    """Trinity's coordinator, or a `CheckpointCoordinator`, which also has `attach`."""

    def save_async(
        self, name: str, save_fn: Callable[[], object], global_step: int, is_state_dict: bool = False
    ) -> object:
        """Run `save_fn` on a thread."""


class Logger(Protocol):
    """A logger such as `logging.Logger`."""

    def info(self, message: str, /, *args: object) -> object:
        """Log a line, with %-arguments."""


class Work(Protocol):
    """An operation of a group under way."""

    def wait(self, timeout: timedelta, /) -> object:
        """Wait. RuntimeError if the operation failed, or is not done within `timeout`."""

    def is_completed(self) -> bool:
        """True if the operation is done or failed."""


class Group(Protocol):
    """A process group, as far as a transport uses it."""

    def rank(self) -> int: ...

    def size(self) -> int: ...

    def broadcast(self, tensors: list[torch.Tensor], options: object, /) -> Work: ...

    def allgather(
        self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], options: object, /
    ) -> Work: ...

    def abort(self) -> None: ...


class ReplacedError(RuntimeError):
    """A later save replaced this one before it began: no failure, and nothing was written."""


_MARK = "_fastsft_reported"


def raise_once(error: BaseException) -> None:
    """Raise `error`, unless it has been raised this way before."""
    if not getattr(error, _MARK, False):
        setattr(error, _MARK, True)
        raise error


def whole_number(what: str, value: SupportsIndex) -> int:
    """Return a step, version or size, also NumPy's, as an `int`. ValueError unless it is 0 or more."""
    try:
        number = operator.index(value)
    except TypeError:
        number = -1
    if not 0 <= number < 1 << 63:
        raise ValueError(f"{what}: expected a whole number from 0 on, got {value!r}")
    return number
