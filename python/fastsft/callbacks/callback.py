"""Events of a run: those of transformers' TrainerCallback, in its order and with its arguments."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypedDict

from fastsft.callbacks.state import TrainerState

if TYPE_CHECKING:
    from typing import Unpack


@dataclass
class TrainerControl:
    """Switches that callbacks may set."""

    should_training_stop: bool = False
    should_epoch_stop: bool = False
    should_save: bool = False
    should_evaluate: bool = False
    should_log: bool = False

    def state(self) -> dict[str, Any]:
        """Return the value of `stateful_callbacks` in trainer_state.json."""
        return {"args": asdict(self), "attributes": {}}


class EventValues(TypedDict, total=False):
    """Values that events get next to arguments, state and control, by name.

    model: as of the Trainer. tokenizer, processing_class: the same object. optimizer, lr_scheduler,
    train_dataloader: views to read from (trainer/compat/views.py), None before on_train_begin.
    eval_dataloader: a view of the rows that were evaluated last, None before. logs: of on_log; metrics: of
    on_evaluate and on_predict.
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
    """Base of callbacks, with the events of transformers' TrainerCallback; each does nothing.

    Methods take (args, state, control, **kwargs); a returned control counts. args: fastsft.TrainingArguments,
    Any here because scripts annotate it with classes of their own. kwargs: `EventValues`. Callbacks of other
    classes work too, and may leave out methods.
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
        """Called when training has ended well; the model has its final weights."""

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
        """Called before the step is computed: the engine computes passes and update in one call."""

    def on_optimizer_step(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Unpack[EventValues]
    ) -> TrainerControl | None:
        """Called when the update is made, or in flight; `global_step` does not count it yet."""

    def on_step_end(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Unpack[EventValues]
    ) -> TrainerControl | None:
        """Called when `global_step` counts the step."""

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
        """Called when a checkpoint is on the disk; for fastsft's own callbacks it may still be in flight."""

    def on_log(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Unpack[EventValues]
    ) -> TrainerControl | None:
        """Called when `logs` are added to `state.log_history`."""
