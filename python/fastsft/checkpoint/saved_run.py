"""A Trainer as checkpoints see it: the parts that they hold, and give back to it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from fastsft.model.trained import TrainedRun

if TYPE_CHECKING:
    from fastsft.arguments import TrainingArguments
    from fastsft.data.token_rows import TokenRows
    from fastsft.planning.run_plan import RunPlan
    from fastsft.runtime.random_state import RandomState


class ForeignStates(NamedTuple):
    """Random states of a checkpoint of transformers. `states`: None for another number of ranks."""

    states: RandomState | None


class HasState(Protocol):
    """A part of the loop with a state of its own in fastsft_state.json."""

    def state(self) -> Mapping[str, object]:
        """As it is written."""


class HasJson(Protocol):
    """The same, for parts that are made of what was written."""

    def to_json(self) -> Mapping[str, object]:
        """As it is written."""


class KeptArguments(Protocol):
    """Arguments that stay though a script changes them."""

    def over(self, args: TrainingArguments) -> TrainingArguments:
        """A copy of `args` with the kept values."""


class SavedRun(TrainedRun, Protocol):
    """The Trainer itself."""

    bytes_at_end: int  # of models that the program writes after `train`; 0: it is not known
    launched_by: dict[str, str]  # starts of torchrun's processes (ranks/torchrun_job.py); none without it
    resumed_states: dict[str, Any] | None
    foreign_states: ForeignStates | None
    plateau_metrics: list[float] | None  # that the plateau of the learning rate has taken; None without one

    @property
    def fixed_arguments(self) -> KeptArguments:
        """Those of the run."""

    @property
    def plan(self) -> RunPlan:
        """Steps and epochs."""

    @property
    def token_budget(self) -> int:
        """Token budget of a micro-batch."""

    @property
    def sync_each_batch(self) -> bool:
        """Gradients are reduced in every micro-batch, not once a step."""

    @property
    def tokenizer(self) -> object:
        """Tokenizer of the training data, or None."""

    @property
    def train_dataset(self) -> object:
        """As it was given."""

    @property
    def train_rows(self) -> TokenRows:
        """The rows of it."""

    @property
    def eval_rows(self) -> TokenRows | dict[str, TokenRows] | None:
        """Of the data to evaluate on."""

    @property
    def bad_steps(self) -> HasState:
        """Judge of steps."""

    @property
    def loss_scale(self) -> HasState:
        """Current loss scale of float16."""

    @property
    def due(self) -> HasJson:
        """Work that a signal left undone."""

    @property
    def losses(self) -> HasJson:
        """Since the last log."""

    def keep_plan(self, token_budget: int | None, sync_each_batch: bool | None) -> None:
        """Take micro-batches and reductions of another plan; ValueError when they do not fit."""

    def save_failed(self, directory: Path) -> None:
        """This checkpoint could not be written, and the run may go on."""
