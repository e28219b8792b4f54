"""Small views of where a process runs, with the names that scripts know from torch and accelerate."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Literal, Protocol

from fastsft.ranks.process_group import barrier
from fastsft.runtime.launch import Launch

if TYPE_CHECKING:
    import torch
    import transformers

LogLevel = Literal["debug", "info", "warning", "error", "critical", "detail", "passive"]


class ParallelMode(Enum):
    """transformers' names of how processes share the work; fastsft has these two."""

    NOT_PARALLEL = "not_parallel"
    DISTRIBUTED = "distributed"


class RankState(Protocol):
    """The ranks, as accelerate's PartialState and `DistributedState` tell of them."""

    @property
    def device(self) -> torch.device: ...
    @property
    def num_processes(self) -> int: ...
    @property
    def process_index(self) -> int: ...
    @property
    def local_process_index(self) -> int: ...
    @property
    def is_main_process(self) -> bool: ...
    @property
    def is_local_main_process(self) -> bool: ...
    def wait_for_everyone(self) -> None: ...


class TheirArguments(Protocol):
    """transformers' TrainingArguments, as far as its own Trainer gets values of it."""

    @property
    def parallel_mode(self) -> transformers.training_args.ParallelMode: ...
    @property
    def distributed_state(self) -> RankState: ...


@dataclass(frozen=True)
class DistributedState:
    """The part of accelerate's PartialState that scripts read."""

    place: Launch
    device: torch.device

    @property
    def num_processes(self) -> int:
        """Ranks."""
        return self.place.world_size

    @property
    def process_index(self) -> int:
        """Global rank."""
        return self.place.rank

    @property
    def local_process_index(self) -> int:
        """Rank on this machine."""
        return self.place.local_rank

    @property
    def is_main_process(self) -> bool:
        """True if this is global rank 0."""
        return self.place.rank == 0

    @property
    def is_local_main_process(self) -> bool:
        """True if this is the first rank of its machine."""
        return self.place.local_rank == 0

    def wait_for_everyone(self) -> None:
        """Wait until every rank is here."""
        barrier()


# "detail" is transformers' name for debug; "passive" leaves the level as the program set it.
_LEVELS = {
    "detail": logging.DEBUG,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
}


def process_log_level(name: str) -> int:
    """The number of Python's logging for a level by name; `passive` is the level of the logger fastsft."""
    return _LEVELS.get(name, logging.getLogger("fastsft").getEffectiveLevel())
