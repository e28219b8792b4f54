"""A Trainer as the pages about its run see it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from fastsft import _C
    from fastsft.arguments import TrainingArguments
    from fastsft.callbacks.state import TrainerState
    from fastsft.data.token_rows import TokenRows
    from fastsft.planning.memory_plan import MemoryPlan
    from fastsft.planning.plan_choice import MemoryBudget
    from fastsft.planning.run_plan import RunPlan
    from fastsft.reporting.progress import Progress
    from fastsft.reporting.reported_model import ReportedModel


class ReportedLosses(Protocol):
    """Losses as they were logged."""

    @property
    def diluted(self) -> Sequence[int]:
        """Steps of logs that have a loss of 0 for want of targets."""


class ReportedFaults(Protocol):
    """Numbers that are finite, and wrong."""

    @property
    def is_ruined(self) -> bool:
        """True if the newest loss says that the model is ruined."""

    def faults(self) -> Iterator[str]:
        """Yield a line for each fault."""


class ReportedSteps(Protocol):
    """Losses of the steps, and their faults."""

    @property
    def losses(self) -> ReportedLosses:
        """Losses as they were logged."""

    @property
    def loss_watch(self) -> ReportedFaults:
        """Faults that losses show."""


class ReportedPlan(Protocol):
    """Memory and micro-batches of the run."""

    memory: MemoryBudget
    token_budget: int  # of a micro-batch

    @property
    def memory_plan(self) -> MemoryPlan | None:
        """None without training data."""

    def packing(self) -> _C.PackingSummary:
        """Summarize how the first steps are cut into micro-batches."""


class ReportedRun(Protocol):
    """Its model, its data, its plan and its progress."""

    @property
    def args(self) -> TrainingArguments:
        """Arguments of the run."""

    @property
    def model(self) -> ReportedModel:
        """Model that is trained."""

    @property
    def engine(self) -> _C.Engine:
        """Engine that trains the model."""

    @property
    def state(self) -> TrainerState:
        """State of the loop."""

    @property
    def train_dataset(self) -> object:
        """Training data as given."""

    @property
    def eval_dataset(self) -> object:
        """Evaluation data as given; None without evaluation."""

    @property
    def train_rows(self) -> TokenRows:
        """Rows of train_dataset."""

    @property
    def eval_rows(self) -> TokenRows | dict[str, TokenRows] | None:
        """Rows of eval_dataset."""

    @property
    def plan(self) -> RunPlan:
        """Steps and epochs of the run."""

    @property
    def progress(self) -> Progress:
        """Times and tokens so far."""

    @property
    def planner(self) -> ReportedPlan:
        """Memory and micro-batches of the run."""

    @property
    def stepper(self) -> ReportedSteps:
        """Losses and their faults."""
