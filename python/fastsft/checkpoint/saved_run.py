"""Protocols for the parts of a Trainer that checkpoints save and restore."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from fastsft.model.model_save import TrainedRun

if TYPE_CHECKING:
    from fastsft.arguments import TrainingArguments
    from fastsft.data.batch_reads import ReadPosition
    from fastsft.data.token_rows import TokenRows
    from fastsft.planning.run_plan import RunPlan
    from fastsft.runtime.random_state import RandomState


class ForeignStates(NamedTuple):
    """The random states in a transformers checkpoint. states: None if its rank count was different."""

    states: RandomState | None


class TrainerOfRun(Protocol):
    """A fastsft Trainer, which has a run."""

    @property
    def _run(self) -> SavedRun:
        """The current or last run."""


def run_of(trainer: SavedRun | TrainerOfRun) -> SavedRun:
    """Return the run of `trainer`; if `trainer` is itself a run, return it."""
    return getattr(trainer, "_run", trainer)  # type: ignore[arg-type]


class SavedPlan(Protocol):
    """A run's plan of micro-batches, tiles and gradient reductions."""

    token_budget: int

    @property
    def sync_each_batch(self) -> bool:
        """True if ranks reduce gradients in every micro-batch, False if once per step."""

    @property
    def tile_tokens(self) -> int:
        """The most tokens of a tile; 0: a micro-batch is not divided."""

    def keep_plan(
        self, token_budget: int | None, sync_each_batch: bool | None, tile_tokens: int | None
    ) -> None:
        """Use a checkpoint's values, except for None. ValueError if the plan does not fit into memory."""


class SavedRun(TrainedRun, Protocol):
    """The part of a run (trainer/run.py) that checkpoints use."""

    resumed_states: dict[str, Any] | None
    foreign_states: ForeignStates | None

    @property
    def bytes_at_end(self) -> int:
        """Size of the models that the program writes after `train` [bytes]; 0 if unknown."""

    @property
    def stopped_early(self) -> bool:
        """True if --early_stopping_patience has ended the run, perhaps before a resume."""

    @property
    def launched_by(self) -> Mapping[str, str]:
        """Start times of torchrun's processes (ranks/torchrun_job.py); empty without torchrun."""

    @property
    def step_args(self) -> TrainingArguments:
        """Copy of the arguments with the values fixed when the Trainer or its optimizer was made."""

    @property
    def planner(self) -> SavedPlan:
        """Plan of micro-batches and gradient reductions."""

    @property
    def plan(self) -> RunPlan:
        """Steps and epochs of the run."""

    @property
    def tokenizer(self) -> object:
        """Tokenizer of the training data, or None."""

    @property
    def train_dataset(self) -> object:
        """Training data as passed to the Trainer."""

    @property
    def eval_dataset(self) -> object:
        """Evaluation data as passed to the Trainer."""

    @property
    def train_rows(self) -> TokenRows:
        """Rows of the training data."""

    @property
    def eval_rows(self) -> TokenRows | dict[str, TokenRows] | None:
        """Rows of the evaluation data, by name if there are several data sets; None without such data."""

    def loop_state(self) -> Mapping[str, object]:
        """Return losses, bad steps, loss scale and pending work, in the form of fastsft_state.json."""

    def reading_position(self) -> ReadPosition | None:
        """Return the random states with which a resumed run can read prefetched rows once more, or None."""

    def save_failed(self, directory: Path) -> None:
        """Forget the checkpoint `directory`, which could not be written. The run may go on."""
