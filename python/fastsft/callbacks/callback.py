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
        """As it is in trainer_state.json under `stateful_callbacks`."""
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
        """The trainer is made."""

    def on_train_begin(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Unpack[EventValues]
    ) -> TrainerControl | None:
        """Training begins, or goes on from a checkpoint."""

    def on_train_end(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Unpack[EventValues]
    ) -> TrainerControl | None:
        """Training has ended well; the model has its final weights."""

    def on_epoch_begin(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Unpack[EventValues]
    ) -> TrainerControl | None:
        """An epoch begins, or goes on."""

    def on_epoch_end(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Unpack[EventValues]
    ) -> TrainerControl | None:
        """An epoch has ended."""

    def on_step_begin(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Unpack[EventValues]
    ) -> TrainerControl | None:
        """Before the first micro-batch of an optimizer step."""

    def on_substep_end(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Unpack[EventValues]
    ) -> TrainerControl | None:
        """Once for each micro-batch of the step but its last."""

    def on_pre_optimizer_step(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Unpack[EventValues]
    ) -> TrainerControl | None:
        """Before the step is computed: its passes and update are one call of the engine."""

    def on_optimizer_step(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Unpack[EventValues]
    ) -> TrainerControl | None:
        """The update is made, or under way; `global_step` does not count it yet."""

    def on_step_end(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Unpack[EventValues]
    ) -> TrainerControl | None:
        """The step counts."""

    def on_prediction_step(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Unpack[EventValues]
    ) -> TrainerControl | None:
        """A batch of an evaluation is done."""

    def on_evaluate(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Unpack[EventValues]
    ) -> TrainerControl | None:
        """An evaluation is done; `metrics`."""

    def on_predict(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Unpack[EventValues]
    ) -> TrainerControl | None:
        """`Trainer.predict` is done; `metrics`."""

    def on_save(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Unpack[EventValues]
    ) -> TrainerControl | None:
        """A checkpoint is on the disk; fastsft's own callbacks hear of it before."""

    def on_log(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Unpack[EventValues]
    ) -> TrainerControl | None:
        """`logs` are added to `state.log_history`."""
