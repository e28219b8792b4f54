"""A run, that is one call of `train()`: its state, and the parts that do its work."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from fastsft.callbacks.state import TrainerState
from fastsft.runtime.timeouts import deadline
from fastsft.trainer.batches import Batches
from fastsft.trainer.checkpoints import Checkpoints, PendingWork
from fastsft.trainer.early_stopping import EarlyStoppingCallback
from fastsft.trainer.events import AgreedControl, Events, RunGuard
from fastsft.trainer.stepper import Stepper
from fastsft.trainer.token_counter import TokenCounter

if TYPE_CHECKING:
    from pathlib import Path

    from fastsft import _C
    from fastsft.arguments import TrainingArguments
    from fastsft.checkpoint.saved_run import ForeignStates
    from fastsft.data.batch_reads import ReadPosition
    from fastsft.data.token_rows import TokenRows
    from fastsft.model.causal_lm import CausalLM
    from fastsft.planning.run_plan import RunPlan
    from fastsft.reporting.progress import Progress
    from fastsft.trainer.evaluator import Evaluator
    from fastsft.trainer.hub_uploads import HubUploads
    from fastsft.trainer.planner import Planner
    from fastsft.trainer.rows import RowReader
    from fastsft.trainer.setup import Setup


class Run:
    """The state and parts of a `train()` call. A new Trainer has a run that has not begun.

    log, evaluate, save: methods of the Trainer, which subclasses may override. resumed_states,
    foreign_states: random states of a fastsft or a transformers checkpoint, kept until the first epoch needs
    them. refused_stop: function that returns the message about a script's stop that the run cannot follow, or
    None. keep_paths: function that makes relative paths absolute after a script's os.chdir. Both functions
    are in compat/guard.py.
    """

    control: AgreedControl
    signals: RunGuard

    def __init__(
        self,
        setup: Setup,
        planner: Planner,
        reader: RowReader,
        evaluator: Evaluator,
        events: Events,
        progress: Progress,
        uploads: HubUploads | None,
        *,
        refused_stop: Callable[[], str | None],
        keep_paths: Callable[[], None],
        log: Callable[[dict[str, float]], None],
        evaluate: Callable[[], dict[str, float]],
        save: Callable[[], Path],
    ) -> None:
        args = setup.args
        self.setup, self.planner, self.evaluator, self.events = setup, planner, evaluator, events
        self.progress, self.uploads = progress, uploads
        self.log, self.evaluate, self.save = log, evaluate, save
        self.state = TrainerState(
            train_batch_size=args.train_batch_size,
            is_local_process_zero=args.local_process_index == 0,
            is_world_process_zero=args.process_index == 0,
        )
        self.pending = PendingWork()
        self.batches = Batches(setup, planner, reader, self.state)
        self.stepper = Stepper(setup, planner, self.state, events, self.pending)
        self._refused_stop = refused_stop
        self.checkpoints = Checkpoints(self, events, progress, keep_paths)
        self.counter, self.start_time = TokenCounter(args), time.monotonic()
        self.first_step = 0  # steps that were already done when this process began
        self.resumed_states: dict[str, Any] | None = None
        self.foreign_states: ForeignStates | None = None

    @contextmanager
    def answering(self, signals: RunGuard, answer: Callable[[], None]) -> Iterator[None]:
        """Use `signals` while the context is open, and call `answer` after each batch of an evaluation."""
        self.signals, self.control = signals, AgreedControl(self.events, signals, self._refused_stop)
        with self.evaluator.calling_after_batches(answer):
            try:
                yield
            finally:
                self.batches.end()

    def begin_steps(self) -> None:
        """Check the model once more, and evaluate if --eval_on_start asks for it. Collective."""
        model = self.setup.model
        model.check_as_given("Trainer.train", True)  # callbacks may have changed the model
        model.load_written_weights()
        if self.setup.args.eval_on_start:
            for stopping in self.early_stopping():
                stopping.counts = not self.state.global_step
            self.evaluate()
            for stopping in self.early_stopping():
                stopping.counts = True
        self.stepper.begin()

    def end_steps(self) -> None:
        """Finish saves and load the best weights after the last step. Collective."""
        model = self.setup.model
        self.batches.end()
        self.stepper.finish()
        model.load_written_weights()
        with deadline(self.setup.args, "save"):
            self.checkpoints.saver.wait()
            self.checkpoints.best.load()
            # If the program saves a final model, checkpoints are removed only afterwards: a restart before
            # that save needs the last checkpoint.
            if not self.setup.bytes_at_end:
                self.checkpoints.best.remove_others()
            model.copy_to_module()

    def position(self) -> tuple[int, int]:
        """Return the epoch of the next step, and the step's number within the epoch."""
        epoch, first = divmod(self.state.global_step, self.planner.plan.steps_per_epoch)
        return epoch, 0 if self.setup.args.ignore_data_skip else first

    def early_stopping(self) -> list[EarlyStoppingCallback]:
        """Return the callback of --early_stopping_patience, if there is one."""
        found = [one for one in self.events.callbacks if isinstance(one, EarlyStoppingCallback)]
        return [one for one in found if one.is_of_run]

    def pop_random_states(self) -> tuple[dict[str, Any] | None, ForeignStates | None]:
        """Return the checkpoint's random states, and clear them here."""
        states = self.resumed_states, self.foreign_states
        self.resumed_states = self.foreign_states = None
        return states

    @property
    def stopped_early(self) -> bool:
        """True if --early_stopping_patience has ended the run, perhaps before a resume."""
        return any(one.has_stopped for one in self.early_stopping())

    @property
    def stop_reason(self) -> str:
        """Reason for which early stopping ended the run; "" otherwise."""
        found = [one for one in self.events.callbacks if isinstance(one, EarlyStoppingCallback)]
        return next((one.reason for one in found if one.reason), "")

    # Properties that checkpoints and reports read (checkpoint/saved_run.py, reporting/reported_run.py).

    @property
    def args(self) -> TrainingArguments:
        """TrainingArguments of the run."""
        return self.setup.args

    @property
    def model(self) -> CausalLM:
        """The model that is being trained."""
        return self.setup.model

    @property
    def engine(self) -> _C.Engine:
        """Engine that trains the model."""
        return self.setup.engine

    @property
    def tokenizer(self) -> object:
        """Tokenizer of the training data, or None."""
        return self.setup.tokenizer

    @property
    def data_collator(self) -> object:
        """Collator of the script, or None."""
        return self.setup.data_collator

    @property
    def train_dataset(self) -> object:
        """Training data as passed to the Trainer."""
        return self.setup.train_dataset

    @property
    def eval_dataset(self) -> object:
        """Evaluation data as passed to the Trainer."""
        return self.setup.eval_dataset

    @property
    def train_rows(self) -> TokenRows:
        """Rows of the training data."""
        return self.planner.rows

    @property
    def eval_rows(self) -> TokenRows | dict[str, TokenRows] | None:
        """Rows of the evaluation data, by name if there are several data sets."""
        return self.evaluator.rows

    @property
    def step_args(self) -> TrainingArguments:
        """Copy of the arguments with the values fixed when the Trainer or its optimizer was made."""
        return self.setup.step_args

    @property
    def bytes_at_end(self) -> int:
        """Size of the models that the program writes after `train` [bytes]; 0 if unknown."""
        return self.setup.bytes_at_end

    @property
    def launched_by(self) -> dict[str, str]:
        """Start times of the first ranks, by torchrun process; empty without torchrun."""
        return self.setup.launched_by

    @property
    def plan(self) -> RunPlan:
        """Steps and epochs of the run."""
        return self.planner.plan

    @property
    def saver(self) -> Any:
        """Writer of checkpoints, which writes at most one checkpoint at a time."""
        return self.checkpoints.saver

    def reading_position(self) -> ReadPosition | None:
        """Return the random states with which a resumed run can read the prefetched rows once more.

        None if the rows are native.
        """
        return self.batches.position()

    def loop_state(self) -> dict[str, object]:
        """Return losses, bad steps, loss scale and pending work, in the form of fastsft_state.json."""
        return {**self.stepper.loop_state(), "due": self.pending.to_json()}

    def save_failed(self, directory: Path) -> None:
        """Forget the checkpoint `directory`, which could not be written. The run goes on."""
        self.checkpoints.best.failed(directory)
