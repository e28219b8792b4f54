"""Interfaces that weight sync uses and others implement, as far as it uses them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch

    from fastsft import _C

Message = dict[str, Any]  # of members or ranks to each other: what JSON can say


class Engine(Protocol):
    """A trainer's engine, veRL's or a `FastsftEngine`. `checkpoint_manager.processing_class` is used
    where it has one."""

    @property
    def module(self) -> Any:
        """The sharded model."""


class NativeEngine(Engine, Protocol):
    """An engine over fastsft's core."""

    send_master: bool

    @property
    def native_engine(self) -> _C.Engine:
        """The core's engine."""

    @property
    def compute_dtype(self) -> torch.dtype:
        """Dtype of the weights that forward reads."""

    @property
    def buffer_dtypes(self) -> Mapping[str, torch.dtype]:
        """Of the tensors that are buffers of the model, by name."""

    def model_texts(self, dtype: torch.dtype) -> dict[str, str]:
        """File name -> content of what describes a model whose parameters have `dtype`; {}: not known."""

    def load_changed_weights(self) -> bool:
        """Let weights count that a script has changed in the model; True for any; collective."""


class YieldingEngine(Engine, Protocol):
    """An engine that says itself what is sent."""

    def get_per_tensor_param(self) -> tuple[Iterable[tuple[str, torch.Tensor]], object]:
        """(name, tensor) one by one, and what else there is to know."""


class Coordinator(Protocol):
    """Trinity's, or a `CheckpointCoordinator`, which also has `attach`."""

    def save_async(
        self, name: str, save_fn: Callable[[], object], global_step: int, is_state_dict: bool = False
    ) -> object:
        """Run `save_fn` on a thread."""


class Logger(Protocol):
    """As `logging.Logger`."""

    def info(self, message: str, /, *args: object) -> object:
        """A line, with %-arguments."""


class Store(Protocol):
    """A store of torch.distributed."""

    def set(self, key: str, value: str, /) -> object: ...

    def get(self, key: str, /) -> bytes | str: ...

    def multi_get(self, keys: list[str], /) -> Sequence[bytes | str]: ...

    def check(self, keys: list[str], /) -> bool: ...

    def add(self, key: str, amount: int, /) -> int: ...

    def delete_key(self, key: str, /) -> object: ...


class Work(Protocol):
    """An operation of a group under way."""

    def wait(self, timeout: timedelta, /) -> object:
        """RuntimeError when it failed, or is not done within `timeout`."""

    def is_completed(self) -> bool:
        """Done or failed."""


class Group(Protocol):
    """A process group, as far as a transport uses it."""

    def rank(self) -> int: ...

    def size(self) -> int: ...

    def broadcast(self, tensors: list[torch.Tensor], options: object, /) -> Work: ...

    def allgather(
        self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], options: object, /
    ) -> Work: ...

    def abort(self) -> None: ...
