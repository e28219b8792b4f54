"""The callbacks of a Trainer, as in transformers (docs/spec/trainer_semantics.md, section 15)."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from fastsft.arguments import TrainingArguments
from fastsft.arguments.from_transformers import take_changes_of_source
from fastsft.callbacks.callback import TrainerControl
from fastsft.callbacks.state import TrainerState
from fastsft.trainer.callback_handler import CallbackHandler
from fastsft.trainer.callback_notices import WITH_GRADIENTS, is_own
from fastsft.trainer.callback_views import EvaluationLoaderView, LoaderView, OptimizerView, ScheduleView
from fastsft.trainer.event_checks import EventChecks
from fastsft.trainer.schedule import Schedule

if TYPE_CHECKING:
    from fastsft.data.token_rows import TokenRows
    from fastsft.model.causal_lm import CausalLM
    from fastsft.planning.run_plan import RunPlan
    from fastsft.trainer.fixed_arguments import FixedArguments
    from fastsft.trainer.loss_scale import LossScale


class TrainerCallbacks:
    """Adds, removes and calls callbacks; a part of Trainer."""

    callbacks: CallbackHandler
    state: TrainerState
    model: CausalLM
    tokenizer: object
    processing_class: object
    args: TrainingArguments
    fixed_arguments: FixedArguments
    loss_scale: LossScale
    plan: RunPlan
    train_dataset: object
    evaluated_rows: TokenRows | None = None  # of the running or last evaluation
    schedule: Schedule | None = None  # of the running or last train()
    plateau_metrics: list[float] | None = None  # that its plateau has taken; None without one
    event_checks: EventChecks | None = None  # of the running train()

    @property
    def control(self) -> TrainerControl:
        """The switches that callbacks set."""
        return self.callbacks.control

    @property
    def callback_handler(self) -> CallbackHandler:
        """The list of callbacks under transformers' name."""
        return self.callbacks

    def add_callback(self, callback: object) -> None:
        """Add an instance, or one made of a class, after the others."""
        self.callbacks.add(callback)

    def pop_callback(self, callback: object) -> object:
        """Remove the first of a class, or this instance, and return it; None when there is none."""
        return self.callbacks.pop(callback)

    def remove_callback(self, callback: object) -> None:
        """Remove the first of a class, or this instance, if there is one."""
        self.callbacks.pop(callback)

    def fire(self, event: str, **kwargs: object) -> None:
        """Tell the callbacks of `event`. ValueError for changes of theirs that cannot be followed."""
        with self._gradients_hidden(event):
            self.callbacks.fire(event, self.state, **self._references(), **kwargs)
        take_changes_of_source(self.args)
        if self.event_checks is not None:
            self.event_checks.after(event)

    def _gradients_hidden(self, event: str) -> AbstractContextManager[None]:
        """In events in which transformers' model has gradients, where a script's callback hears of them."""
        if event not in WITH_GRADIENTS or not any(is_own(each, event) for each in self.callbacks.callbacks):
            return nullcontext()
        hidden: AbstractContextManager[None] = self.model.unseen_gradients(event)
        return hidden

    def _references(self) -> dict[str, object]:
        return {
            "model": self.model,
            "processing_class": self.processing_class,
            "tokenizer": self.tokenizer,
            "optimizer": OptimizerView(self) if self.schedule is not None else None,
            "lr_scheduler": ScheduleView(self) if self.schedule is not None else None,
            "train_dataloader": LoaderView(self) if self.schedule is not None else None,
            "eval_dataloader": None if self.evaluated_rows is None else EvaluationLoaderView(self),
        }
