"""Calls callbacks, and decides without them when to log, evaluate, save and stop."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from typing import Any

from fastsft.arguments.fields import ArgumentFields
from fastsft.callbacks.callback import TrainerCallback, TrainerControl
from fastsft.callbacks.state import TrainerState

STOPS = ("should_training_stop", "should_epoch_stop")
SWITCHES = (*STOPS, "should_save", "should_evaluate", "should_log")


def set_intervals(state: TrainerState, args: ArgumentFields) -> None:
    """Steps between logs, evaluations and checkpoints; shares of `max_steps` round up."""
    for kind in ("logging", "eval", "save"):
        steps = getattr(args, f"{kind}_steps")
        if steps is not None:
            setattr(state, f"{kind}_steps", math.ceil(state.max_steps * steps) if steps < 1 else steps)


def _kept_flow(what: str) -> str:
    return (
        f"Trainer: {what} has no effect here: the engine plans a run by the default flow; leave it in, set "
        "logging_strategy, eval_strategy and save_strategy to no, and let a callback of your own set control"
    )


class DefaultFlow(TrainerCallback):
    """The steps at which to log, evaluate, save and stop (docs/spec/trainer_semantics.md, section 15)."""

    def on_step_end(
        self, args: ArgumentFields, state: TrainerState, control: TrainerControl, **_: object
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
        self, args: ArgumentFields, state: TrainerState, control: TrainerControl, **_: object
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

    def __init__(self, callbacks: Iterable[object], args: ArgumentFields) -> None:
        self.callbacks: list[Any] = []
        self.args = args
        self.control = TrainerControl()
        self.set_by: dict[str, str] = {}  # switches that the last event has set, and callbacks that did
        for callback in callbacks:
            self.add(callback)

    def add(self, callback: object) -> None:
        """Add an instance, or one made of a class, after the others."""
        self.callbacks.append(callback() if isinstance(callback, type) else callback)

    def pop(self, callback: object) -> object:
        """Remove the first of a class, or this instance, and return it; None when there is none.

        ValueError for transformers' DefaultFlowCallback, which is first in its list.
        """
        library = sys.modules.get("transformers.trainer_callback")
        flow = getattr(library, "DefaultFlowCallback", None)
        if flow is not None and isinstance(callback, type) and issubclass(flow, callback):
            raise ValueError(_kept_flow(f"removing {callback.__name__}"))
        for known in self.callbacks:
            if isinstance(known, callback) if isinstance(callback, type) else known == callback:
                self.callbacks.remove(known)
                return known
        return None

    def check_flow(self) -> None:
        """ValueError where a script has taken the default flow away: the engine plans a run by it."""
        if not any(type(known) is DefaultFlow for known in self.callbacks):
            raise ValueError(_kept_flow("callback_handler.callbacks without DefaultFlow"))

    def states(self) -> dict[str, object]:
        """The part of trainer_state.json about callbacks with a `state`, by class; of several a list."""
        found: dict[str, list[object]] = {}
        for item in (*self._stateful(), self.control):
            found.setdefault(type(item).__name__, []).append(item.state())
        return {name: states[0] if len(states) == 1 else states for name, states in found.items()}

    def restore(self, states: dict[str, Any]) -> None:
        """Give callbacks their values of `states` back, in order where a class has several."""
        left = {name: list(item) if isinstance(item, list) else [item] for name, item in states.items()}
        for callback in self._stateful():
            known = left.get(type(callback).__name__)
            if known:
                for name, value in {**known[0]["args"], **known.pop(0)["attributes"]}.items():
                    setattr(callback, name, value)

    def _stateful(self) -> list[Any]:
        return [item for item in self.callbacks if callable(getattr(item, "state", None))]

    def fire(self, event: str, state: TrainerState, **kwargs: object) -> TrainerControl:
        """Call `event` of every callback; first clear the switches that the event resets."""
        self._clear(event)
        if event == "on_step_begin":
            self.check_flow()
        step, before, set_by = state.global_step, self._switches(), dict[str, str]()
        for callback in self.callbacks:
            method = getattr(callback, event, None)
            result = method(self.args, state, self.control, **kwargs) if method else None
            if state.global_step != step:
                raise ValueError(
                    f"{type(callback).__name__}.{event} set state.global_step from {step} to "
                    f"{state.global_step}: steps are counted by the engine; leave it out, and end a run with "
                    "max_steps or control.should_training_stop"
                )
            if result is not None:
                self.control = result
            now = self._switches()
            set_by |= {name: type(callback).__name__ for name in now if now[name] and not before[name]}
            before = now
        self.set_by = set_by
        return self.control

    def _switches(self) -> dict[str, bool]:
        return {name: bool(getattr(self.control, name)) for name in SWITCHES}

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
