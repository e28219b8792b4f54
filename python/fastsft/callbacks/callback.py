"""Events of a run: those of transformers' TrainerCallback, in its order and with its arguments."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


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


class TrainerCallback:
    """Base of callbacks, with the events of transformers' TrainerCallback; each does nothing.

    Methods take (args, state, control, **kwargs); a returned control counts. kwargs: model, processing_class,
    tokenizer; from on_train_begin on lr_scheduler and train_dataloader, to read from (callback_views.py);
    optimizer and eval_dataloader, which are None; logs of on_log, metrics of on_evaluate and on_predict.
    Callbacks of other classes work too, and may leave out methods.
    """

    def on_init_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        """The trainer is made."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        """Training begins, or goes on from a checkpoint."""

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        """Training has ended well; the model has its final weights."""

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        """An epoch begins, or goes on."""

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        """An epoch has ended."""

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        """Before the first micro-batch of an optimizer step."""

    def on_substep_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        """Once for each micro-batch of the step but its last."""

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        """Before the step is computed: its passes and update are one call of the engine."""

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        """The update is made, or under way; `global_step` does not count it yet."""

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        """The step counts."""

    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        """A batch of an evaluation is done."""

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        """An evaluation is done; `metrics`."""

    def on_predict(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        """`Trainer.predict` is done; `metrics`."""

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        """A checkpoint is taken; it may still be on its way to the disk."""

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        """`logs` are added to `state.log_history`."""
