"""The parts of a Trainer that start and end pages read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from fastsft.model.model_save import TrainedRun

if TYPE_CHECKING:
    from fastsft import _C
    from fastsft.data.token_rows import TokenRows
    from fastsft.planning.memory_plan import MemoryPlan
    from fastsft.planning.plan_request import MemoryBudget
    from fastsft.planning.run_plan import RunPlan
    from fastsft.reporting.progress import Progress


class ReportedLosses(Protocol):
    """A run's logged losses."""

    @property
    def diluted(self) -> Sequence[int]:
        """Steps whose logged mean loss includes a step without targets, which counts as 0."""


class ReportedFaults(Protocol):
    """A search for finite losses that show that something is wrong."""

    @property
    def is_ruined(self) -> bool:
        """True if the newest loss shows that the model is ruined."""

    def faults(self) -> Iterator[str]:
        """Yield a line of text for each fault."""


class ReportedSteps(Protocol):
    """A run's step losses, and the faults that they show."""

    @property
    def losses(self) -> ReportedLosses:
        """The logged losses."""

    @property
    def loss_watch(self) -> ReportedFaults:
        """The faults that the losses show."""


class ReportedPlan(Protocol):
    """Memory and micro-batches for a run."""

    memory: MemoryBudget
    token_budget: int  # the most tokens in a micro-batch

    @property
    def memory_plan(self) -> MemoryPlan | None:
        """The memory plan; None if there is no training data."""

    def packing(self) -> _C.PackingSummary:
        """Summarize how the first steps are divided into micro-batches."""


class ReportedRun(TrainedRun, Protocol):
    """A run's arguments, model, data, plan and progress."""

    @property
    def train_dataset(self) -> object:
        """The training data, in the form that the user passed to the Trainer."""

    @property
    def eval_dataset(self) -> object:
        """The evaluation data, in the form that the user passed to the Trainer; None without evaluation."""

    @property
    def train_rows(self) -> TokenRows:
        """The tokenized rows of train_dataset."""

    @property
    def eval_rows(self) -> TokenRows | dict[str, TokenRows] | None:
        """The tokenized rows of eval_dataset, by name if it has several data sets; None if there is none."""

    @property
    def stop_reason(self) -> str:
        """Reason for which early stopping ended the run; "" otherwise."""

    @property
    def plan(self) -> RunPlan:
        """The run's step and epoch counts."""

    @property
    def progress(self) -> Progress:
        """The run's times and tokens so far."""

    @property
    def planner(self) -> ReportedPlan:
        """Memory and micro-batches for the run."""

    @property
    def stepper(self) -> ReportedSteps:
        """The run's step losses, and the faults that they show."""
