"""The base class for callbacks, with the events of transformers' TrainerCallback and their arguments."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypedDict

from fastsft.callbacks.state import TrainerState

if TYPE_CHECKING:
    from typing import Unpack


@dataclass
class TrainerControl:
    """Switches by which callbacks ask the training loop to stop, save, evaluate or log."""

    should_training_stop: bool = False
    should_epoch_stop: bool = False
    should_save: bool = False
    should_evaluate: bool = False
    should_log: bool = False

    def state(self) -> dict[str, Any]:
        """Return the switches as an entry for `stateful_callbacks` in trainer_state.json."""
        return {"args": asdict(self), "attributes": {}}


class EventValues(TypedDict, total=False):
    """Keyword arguments of events, in addition to args, state and control.

    model: the Trainer's model. tokenizer, processing_class: both are the Trainer's tokenizer. optimizer,
    lr_scheduler, train_dataloader: read-only views (trainer/compat/views.py); None before on_train_begin.
    eval_dataloader: a read-only view of the last evaluation's loader; None before the first evaluation. logs:
    only for on_log. metrics: only for on_evaluate and on_predict.
    """

    model: Any
    tokenizer: Any
    processing_class: Any
    optimizer: object
    lr_scheduler: object
    train_dataloader: object
    eval_dataloader: object
    logs: dict[str, float]
    metrics: dict[str, float]


class TrainerCallback:
    """Base for callbacks, with the events of transformers' TrainerCallback. Its methods do nothing.

    Methods take (args, state, control, **kwargs). If a method returns a control, this control replaces the
    current control. args: fastsft.TrainingArguments; the annotation is Any because scripts use their own
    argument classes. kwargs: `EventValues`. Callbacks need not derive from this class, and may lack methods.
    """

    def on_init_end(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Unpack[EventValues]
    ) -> TrainerControl | None:
        """Called when the Trainer is made."""

    def on_train_begin(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Unpack[EventValues]
    ) -> TrainerControl | None:
        """Called when training begins, or resumes from a checkpoint."""

    def on_train_end(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Unpack[EventValues]
    ) -> TrainerControl | None:
        """Called when training has ended without an error; the model has its final weights."""

    def on_epoch_begin(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Unpack[EventValues]
    ) -> TrainerControl | None:
        """Called when an epoch begins, or resumes."""

    def on_epoch_end(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Unpack[EventValues]
    ) -> TrainerControl | None:
        """Called when an epoch has ended."""

    def on_step_begin(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Unpack[EventValues]
    ) -> TrainerControl | None:
        """Called before the first micro-batch of an optimizer step."""

    def on_substep_end(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Unpack[EventValues]
    ) -> TrainerControl | None:
        """Called once for each micro-batch of the step except the last."""

    def on_pre_optimizer_step(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Unpack[EventValues]
    ) -> TrainerControl | None:
        """Called before the step is computed, since the engine computes gradients and update in one call."""

    def on_optimizer_step(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Unpack[EventValues]
    ) -> TrainerControl | None:
        """Called when the update is done or in flight; `global_step` does not count the step yet."""

    def on_step_end(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Unpack[EventValues]
    ) -> TrainerControl | None:
        """Called after the step, when `global_step` includes the step."""

    def on_prediction_step(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Unpack[EventValues]
    ) -> TrainerControl | None:
        """Called after each batch of an evaluation."""

    def on_evaluate(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Unpack[EventValues]
    ) -> TrainerControl | None:
        """Called after an evaluation; kwargs have its `metrics`."""

    def on_predict(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Unpack[EventValues]
    ) -> TrainerControl | None:
        """Called after `Trainer.predict`; kwargs have its `metrics`."""

    def on_save(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Unpack[EventValues]
    ) -> TrainerControl | None:
        """Called after a save; for fastsft's own callbacks, the files may not be complete yet."""

    def on_log(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Unpack[EventValues]
    ) -> TrainerControl | None:
        """Called after `logs` were added to `state.log_history`."""
