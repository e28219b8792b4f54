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
    """The random states in a checkpoint of transformers. states: None if it has another number of ranks."""

    states: RandomState | None


class TrainerOfRun(Protocol):
    """A fastsft Trainer with its run."""

    @property
    def _run(self) -> SavedRun:
        """Its running or last run."""


def run_of(trainer: SavedRun | TrainerOfRun) -> SavedRun:
    """Return the run of a Trainer; a run is returned as it is."""
    return getattr(trainer, "_run", trainer)  # type: ignore[arg-type]


class SavedPlan(Protocol):
    """The plan of micro-batches and gradient reductions of a run."""

    token_budget: int

    @property
    def sync_each_batch(self) -> bool:
        """True if gradients are reduced in every micro-batch, False if once per step."""

    def keep_plan(self, token_budget: int | None, sync_each_batch: bool | None) -> None:
        """Use these values of a checkpoint's plan, unless None. ValueError if they do not fit into memory."""


class SavedRun(TrainedRun, Protocol):
    """The part of a run (trainer/run.py) that checkpoints use."""

    resumed_states: dict[str, Any] | None
    foreign_states: ForeignStates | None

    @property
    def bytes_at_end(self) -> int:
        """Size in bytes of the models that the program writes after `train`; 0 if unknown."""

    @property
    def launched_by(self) -> Mapping[str, str]:
        """Starts of torchrun's processes (ranks/torchrun_job.py); empty without torchrun."""

    @property
    def step_args(self) -> TrainingArguments:
        """A copy of the arguments that later changes of the arguments do not affect."""

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
    def train_rows(self) -> TokenRows:
        """Rows of the training data."""

    @property
    def eval_rows(self) -> TokenRows | dict[str, TokenRows] | None:
        """Rows of the evaluation data, by name if there are several sets; None without evaluation data."""

    def loop_state(self) -> Mapping[str, object]:
        """Return losses, bad steps, loss scale and due actions, in the form of fastsft_state.json."""

    def reading_position(self) -> ReadPosition | None:
        """Return the random states from which a resumed run reads untrained rows again, or None."""

    def save_failed(self, directory: Path) -> None:
        """Note that the checkpoint `directory` could not be written, while the run may go on."""
