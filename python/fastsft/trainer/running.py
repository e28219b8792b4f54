"""A Trainer as the parts of its loop see it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from fastsft.checkpoint.saved_run import ForeignStates, SavedRun

if TYPE_CHECKING:
    from fastsft.callbacks.callback import TrainerControl
    from fastsft.callbacks.state import TrainerState
    from fastsft.checkpoint.saver import CheckpointSaver
    from fastsft.data.batch_reads import BatchReader, EpochReads
    from fastsft.data.token_rows import TokenRows
    from fastsft.trainer.bad_steps import BadSteps
    from fastsft.trainer.callback_handler import CallbackHandler
    from fastsft.trainer.loss_meter import LossMeter
    from fastsft.trainer.loss_scale import LossScale
    from fastsft.trainer.loss_watch import LossWatch
    from fastsft.trainer.pending_work import Due
    from fastsft.trainer.schedule import Schedule


class Judge(Protocol):
    """Knows the best evaluation."""

    def take(self, metrics: dict[str, float]) -> None:
        """Compare an evaluation."""

    def resumed(self, checkpoint: str) -> None:
        """The state is that of `checkpoint`; collective."""


class Checks(Protocol):
    """Looks at what callbacks change."""

    @property
    def refused(self) -> str | None:
        """A message about a stop that cannot be followed."""


class Running(SavedRun, Protocol):
    """A Trainer that trains: what its loop reads, sets and calls."""

    state: TrainerState
    schedule: Schedule | None
    train_rows: TokenRows
    train_reader: BatchReader | None
    epoch_reads: EpochReads | None
    resumed_states: dict[str, Any] | None
    foreign_states: ForeignStates | None
    bad_steps: BadSteps
    loss_scale: LossScale
    due: Due
    losses: LossMeter
    loss_watch: LossWatch

    @property
    def eval_dataset(self) -> object:
        """As it was given."""

    @property
    def best_model(self) -> Judge:
        """Of the run."""

    @property
    def event_checks(self) -> Checks | None:
        """Of what callbacks change, while `train` runs."""

    @property
    def saver(self) -> CheckpointSaver:
        """Of the run."""

    @property
    def callbacks(self) -> CallbackHandler:
        """All of them."""

    @property
    def control(self) -> TrainerControl:
        """The switches that callbacks set."""

    @property
    def data_collator(self) -> object:
        """As it was given."""

    def fire(self, event: str, **kwargs: object) -> None:
        """Tell the callbacks."""

    def log_step(self, logs: dict[str, float]) -> None:
        """Tell the callbacks of a log."""

    def evaluate_in_training(self) -> dict[str, float]:
        """The metrics now; collective."""

    def save_checkpoint(self) -> Path:
        """Of the state now; collective."""

    def checkpoint_path(self) -> Path:
        """Of the state now."""

    def saved_as(self, checkpoint: str) -> None:
        """The current state is that of `checkpoint`."""

    def make_room(self, row: int, tokens: int) -> None:
        """Plan memory again for a row that is longer than all that were planned for."""

    def open_train_reader(self) -> None:
        """Begin to read the data, where its rows are not native."""

    def _check_libraries(self, method: str, *, training: bool) -> None: ...
