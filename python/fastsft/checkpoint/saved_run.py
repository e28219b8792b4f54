"""A Trainer as checkpoints see it: the parts that they hold, and give back to it."""

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
    """Random states of a checkpoint of transformers. `states`: None for another number of ranks."""

    states: RandomState | None


class TrainerOfRun(Protocol):
    """A Trainer of fastsft, whose run is saved."""

    @property
    def _run(self) -> SavedRun:
        """Its running or last run."""


def run_of(trainer: SavedRun | TrainerOfRun) -> SavedRun:
    """Return the run of a Trainer; a run is returned as it is."""
    return getattr(trainer, "_run", trainer)  # type: ignore[arg-type]


class SavedPlan(Protocol):
    """Micro-batches and reductions of a run."""

    token_budget: int

    @property
    def sync_each_batch(self) -> bool:
        """True if gradients are reduced in every micro-batch, False if once a step."""

    def keep_plan(self, token_budget: int | None, sync_each_batch: bool | None) -> None:
        """Use the micro-batches and reductions of a checkpoint's plan; ValueError if they do not fit."""


class SavedRun(TrainedRun, Protocol):
    """A run as checkpoints see it (trainer/run.py)."""

    resumed_states: dict[str, Any] | None
    foreign_states: ForeignStates | None

    @property
    def bytes_at_end(self) -> int:
        """Bytes of the models that the program writes after `train`; 0 if unknown."""

    @property
    def launched_by(self) -> Mapping[str, str]:
        """Starts of torchrun's processes (ranks/torchrun_job.py); empty without torchrun."""

    @property
    def step_args(self) -> TrainingArguments:
        """Arguments with the values that a later change does not reach."""

    @property
    def planner(self) -> SavedPlan:
        """Micro-batches and reductions of the run."""

    @property
    def plan(self) -> RunPlan:
        """Steps and epochs of the run."""

    @property
    def tokenizer(self) -> object:
        """Tokenizer of the training data, or None."""

    @property
    def train_dataset(self) -> object:
        """Training data as given."""

    @property
    def train_rows(self) -> TokenRows:
        """The rows of it."""

    @property
    def eval_rows(self) -> TokenRows | dict[str, TokenRows] | None:
        """Rows of the evaluation data, by name if there are several sets."""

    def loop_state(self) -> Mapping[str, object]:
        """Return losses, bad steps, loss scale and pending work, as in fastsft_state.json."""

    def reading_position(self) -> ReadPosition | None:
        """Return the random states from which rows that were read ahead are read again."""

    def save_failed(self, directory: Path) -> None:
        """This checkpoint could not be written, and the run may go on."""
