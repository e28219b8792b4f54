"""Events of a run: those of transformers' TrainerCallback, in its order and with its arguments."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from fastsft.arguments import TrainingArguments
from fastsft.state import TrainerState


@dataclass
class TrainerControl:
    """Switches that callbacks may set."""

    should_training_stop: bool = False
    should_epoch_stop: bool = False
    should_save: bool = False
    should_evaluate: bool = False
    should_log: bool = False

    def state(self) -> dict[str, Any]:
        """As it stands in trainer_state.json under `stateful_callbacks`."""
        return {"args": asdict(self), "attributes": {}}


class TrainerCallback:
    """Base of callbacks. Methods take (args, state, control, **kwargs); a returned control counts.

    Events: on_init_end, on_train_begin, on_epoch_begin, on_step_begin, on_step_end, on_log,
    on_evaluate, on_save, on_epoch_end, on_train_end. Any method may be left out.
    """


class DefaultFlow(TrainerCallback):
    """When to log, evaluate, save and stop (trainer_semantics.md, section 15)."""

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> TrainerControl:
        """Cadences in steps; at `max_steps` the run stops, and saves when it saves by steps."""
        step = state.global_step
        control.should_log |= step == 1 and args.logging_first_step
        control.should_log |= args.logging_strategy == "steps" and step % state.logging_steps == 0
        control.should_evaluate |= (
            args.eval_strategy == "steps" and step % state.eval_steps == 0 and (args.eval_delay or 0) <= step
        )
        control.should_save |= args.save_strategy == "steps" and step % state.save_steps == 0
        if step >= state.max_steps:
            control.should_training_stop = True
            control.should_save |= args.save_strategy == "steps"
        return control

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> TrainerControl:
        """Cadences in epochs."""
        control.should_log |= args.logging_strategy == "epoch"
        control.should_evaluate |= args.eval_strategy == "epoch" and (args.eval_delay or 0) <= (
            state.epoch or 0
        )
        control.should_save |= args.save_strategy == "epoch"
        return control


class CallbackHandler:
    """Calls every callback in turn and keeps the control they agree on."""

    def __init__(self, callbacks: Iterable[Any], args: TrainingArguments) -> None:
        self.callbacks = [callback() if isinstance(callback, type) else callback for callback in callbacks]
        self.args = args
        self.control = TrainerControl()

    def fire(self, event: str, state: TrainerState, **kwargs: Any) -> TrainerControl:
        """Call `event` of every callback; first clear the switches that the event resets."""
        self._clear(event)
        for callback in self.callbacks:
            method = getattr(callback, event, None)
            result = method(self.args, state, self.control, **kwargs) if method else None
            if result is not None:
                self.control = result
        return self.control

    def _clear(self, event: str) -> None:
        cleared = {
            "on_train_begin": ("should_training_stop",),
            "on_epoch_begin": ("should_epoch_stop",),
            "on_step_begin": ("should_log", "should_evaluate", "should_save"),
            "on_log": ("should_log",),
            "on_evaluate": ("should_evaluate",),
            "on_save": ("should_save",),
        }
        for name in cleared.get(event, ()):
            setattr(self.control, name, False)
