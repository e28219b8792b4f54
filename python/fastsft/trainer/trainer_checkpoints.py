"""Checkpoints of a run (docs/spec/trainer_semantics.md, section 17); a part of Trainer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from fastsft.arguments import TrainingArguments
from fastsft.callbacks.callback import TrainerControl
from fastsft.callbacks.state import TrainerState
from fastsft.ranks.exchange import on_any_rank
from fastsft.runtime.timeouts import deadline
from fastsft.trainer.callback_handler import CallbackHandler
from fastsft.trainer.callback_notices import hears_of_saves

if TYPE_CHECKING:
    from fastsft.checkpoint.saver import CheckpointSaver
    from fastsft.model.causal_lm import CausalLM
    from fastsft.reporting.progress import Progress
    from fastsft.trainer.best_model import BestModel


class TrainerCheckpoints:
    """Saves `checkpoint-<step>` directories, and tells callbacks and the best model of them."""

    args: TrainingArguments
    state: TrainerState
    model: CausalLM
    callbacks: CallbackHandler
    progress: Progress
    saver: CheckpointSaver
    best_model: BestModel
    fire: Callable[..., None]
    _keep_paths: Callable[[], None]

    if TYPE_CHECKING:  # of TrainerCallbacks

        @property
        def control(self) -> TrainerControl: ...

    def save_checkpoint(self) -> Path:
        """Save `checkpoint-<step>` into `output_dir`, once a step; collective. Returns its directory.

        It is written during training, until `saver.wait()` returns (checkpoint/saver.py); before `on_save`
        where a callback of any rank does something then. Without `on_save` where it could not be written and
        the run goes on.
        """
        self._keep_paths()
        path = self.checkpoint_path()
        if self.model.take_weights_to_save("Trainer.save_checkpoint"):
            self.saver.remember(None)  # the checkpoint of this step has the weights from before
        self.best_model.saving(self.state.global_step)
        if self.saver.has(path):
            return path
        self.state.stateful_callbacks = self.callbacks.states()
        with deadline(self.args, "save"), self.progress.pace.phase("waiting"):
            self.saver.wait_before(path)  # nothing is said of this one while another is being written
        with deadline(self.args, "save"), self.progress.phase("saving", path.name):
            self.saver.save(path)
            if on_any_rank(any(hears_of_saves(each) for each in self.callbacks.callbacks)):
                self.saver.wait()  # it may read the checkpoint, or put files of its own there
            if self.saver.has(path):
                self.fire("on_save")
            else:
                self.control.should_save = False  # as the event does: this step is not tried again
        return path

    def checkpoint_path(self) -> Path:
        """The directory that `save_checkpoint` would save to now."""
        return Path(self.args.output_dir or ".") / f"checkpoint-{self.state.global_step}"

    def save_failed(self, directory: Path) -> None:
        """The saver could not write this checkpoint, and the run may go on."""
        self.best_model.failed(directory)

    def saved_as(self, checkpoint: str) -> None:
        """The current state is that of `checkpoint`, which is not saved again."""
        path = self.checkpoint_path()
        self.best_model.saving(self.state.global_step)
        self.saver.remember(path if Path(checkpoint).resolve() == path.resolve() else None)
