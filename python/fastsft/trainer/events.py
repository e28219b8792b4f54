"""Events of a run: which callbacks hear of them, and what follows when one sets a switch.

Ranks agree on the switches, so that all of them log, evaluate, save and stop at the same steps.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from numbers import Real
from typing import Any

from fastsft.arguments import TrainingArguments
from fastsft.arguments.fields import ArgumentFields
from fastsft.callbacks.callback import TrainerCallback, TrainerControl
from fastsft.callbacks.state import TrainerState
from fastsft.originals.functions import is_defined_there, is_written_in, plain
from fastsft.ranks.process_group import gather_objects, host_collective
from fastsft.runtime.launch import launch
from fastsft.trainer.schedule import metric_key
from fastsft.trainer.signals import SignalGuard

_CALLBACKS = "transformers.trainer_callback"
STOPS = ("should_training_stop", "should_epoch_stop")
SWITCHES = (*STOPS, "should_save", "should_evaluate", "should_log")


def set_intervals(state: TrainerState, args: ArgumentFields) -> None:
    """Set the steps between logs, evaluations and checkpoints; shares of `max_steps` round up."""
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
        """Set the switches of step intervals; at `max_steps` stop, and save if saving goes by steps."""
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
        """Set the switches of epoch intervals."""
        control.should_log |= args.logging_strategy == "epoch"
        control.should_evaluate |= args.eval_strategy == "epoch" and (args.eval_delay or 0) <= (
            state.epoch or 0
        )
        control.should_save |= args.save_strategy == "epoch"
        return control


def handles_on_save(callback: object) -> bool:
    """True if `callback` has code for `on_save` that fastsft did not write, which may read the checkpoint.

    Code of a library counts, as transformers' trackers upload checkpoints.
    """
    method = plain(getattr(callback, "on_save", None))
    if method is None or is_written_in(method, "fastsft"):
        return False
    return _CALLBACKS not in sys.modules or not is_defined_there(
        method, _CALLBACKS, "TrainerCallback.on_save"
    )


class Events:
    """Calls every callback in turn, and keeps the switches that they set.

    around: opened around the callbacks of each event (compat/guard.py follows a script's changes in it).
    """

    def __init__(
        self,
        args: ArgumentFields,
        around: Callable[[str], AbstractContextManager[None]] = lambda event: nullcontext(),
    ) -> None:
        self.callbacks: list[Any] = []
        self.args, self._around = args, around
        self.control = TrainerControl()
        self.set_by: dict[str, str] = {}  # switches that the last event has set, and callbacks that did

    def fire(self, event: str, **kwargs: object) -> None:
        """Tell all callbacks of `event`. ValueError for changes of theirs that cannot be followed."""
        with self._around(event):
            self._call(event, self._state, **self._values(), **kwargs)

    def attach(self, state: TrainerState, values: Callable[[], dict[str, object]]) -> None:
        """Hand the state of another run to callbacks. values: the keyword arguments of every event."""
        self._state, self._values = state, values

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
        """Raise ValueError if a script has removed the default flow, by which the engine plans a run."""
        if not any(type(known) is DefaultFlow for known in self.callbacks):
            raise ValueError(_kept_flow("callback_handler.callbacks without DefaultFlow"))

    def states(self) -> dict[str, object]:
        """Return the states of callbacks by class, for trainer_state.json; a list if a class has several."""
        found: dict[str, list[object]] = {}
        for item in (*self._stateful(), self.control):
            found.setdefault(type(item).__name__, []).append(item.state())
        return {name: states[0] if len(states) == 1 else states for name, states in found.items()}

    def restore(self, states: dict[str, Any]) -> None:
        """Restore callbacks from `states`, in order if a class has several."""
        left = {name: list(item) if isinstance(item, list) else [item] for name, item in states.items()}
        for callback in self._stateful():
            known = left.get(type(callback).__name__)
            if known:
                for name, value in {**known[0]["args"], **known.pop(0)["attributes"]}.items():
                    setattr(callback, name, value)

    def _stateful(self) -> list[Any]:
        return [item for item in self.callbacks if callable(getattr(item, "state", None))]

    def _call(self, event: str, state: TrainerState, **kwargs: object) -> None:
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


def deciding_metrics(args: TrainingArguments, metrics: dict[str, Any]) -> dict[str, Any]:
    """Return rank 0's numbers among `metrics`, by which all ranks decide what follows. Collective.

    Its metric_for_best_model is returned even if it is no number. With one rank: `metrics`.
    """
    if launch().world_size == 1:
        return metrics
    name = metric_key(args.metric_for_best_model or "loss")
    numbers = {key: value for key, value in metrics.items() if isinstance(value, Real) or key == name}
    return gather_objects(numbers)[0]


@contextmanager
def of_first_rank(args: TrainingArguments, metrics: dict[str, Any]) -> Iterator[None]:
    """Put rank 0's numbers into `metrics` while callbacks see them. Collective.

    Afterwards they are this rank's own again, unless a callback has set others.
    """
    own = dict(metrics)
    first = {
        name: value for name, value in deciding_metrics(args, metrics).items() if value is not own.get(name)
    }
    metrics.update(first)
    yield
    for name, value in first.items():
        if metrics.get(name) is not value:
            continue
        if name in own:
            metrics[name] = own[name]
        else:
            del metrics[name]


class RunGuard(SignalGuard):
    """A SignalGuard whose exchange also takes bits of the loop."""

    def __enter__(self) -> RunGuard:
        super().__enter__()
        return self

    def exchange(self, bits: Sequence[bool] = ()) -> tuple[int, list[bool]]:
        """Combine pending signals and `bits` of all ranks by logical or. Collective, one small exchange."""
        noted, found = self._noted(), list(bits)
        if launch().world_size > 1:
            ends = 0 if noted == self.only_save else noted
            ends, noted, *numbers = _greatest([ends, noted, *map(int, bits)])
            noted, found = ends or noted, [number > 0 for number in numbers]
        if noted == self.only_save:
            self._is_to_save = False
        return noted, found


def _greatest(numbers: list[int]) -> list[int]:
    """Return the greatest of each number over all ranks. Collective."""
    import torch
    import torch.distributed as dist

    values = torch.tensor(numbers)
    with host_collective("agreement on signals and on the switches of callbacks"):
        dist.all_reduce(values, op=dist.ReduceOp.MAX)
    return [int(value) for value in values.tolist()]


class AgreedControl:
    """Switches of callbacks and pending signals, as all ranks know them.

    refused_stop: returns the message about a stop that cannot be followed, or None.
    """

    def __init__(self, events: Events, signals: RunGuard, refused_stop: Callable[[], str | None]) -> None:
        self._events, self._signals, self._refused_stop = events, signals, refused_stop
        self._asked = 0  # a signal that all ranks know of and nobody has answered
        self._stops = False  # as of the last agreement

    def agree(self, *, logged: bool = False) -> bool:
        """Set every switch that any rank has set. True if some ranks, but not all, have `logged`. Collective.

        ValueError on all ranks if a callback of one rank has set a stop that cannot be followed.
        """
        control, refused = self._events.control, self._refused_stop()
        mine = [bool(getattr(control, name)) for name in SWITCHES]
        asked, bits = self._signals.exchange([*mine, logged, not logged, refused is not None])
        self._asked = asked or self._asked
        *switches, some, not_all, is_refused = bits
        if is_refused:
            raise ValueError(next(text for text in gather_objects(refused) if text is not None))
        for name, wanted in zip(SWITCHES, switches, strict=True):
            if wanted:
                setattr(control, name, True)
        self._stops = any(switches[: len(STOPS)])
        return some and not_all

    def pop_signal(self) -> int:
        """Return the signal to answer now, or 0, and forget it."""
        asked, self._asked = self._asked, 0
        return asked

    def exchange_signals(self) -> int:
        """Exchange signals between ranks; return the one to answer now, or 0. Collective."""
        asked, _ = self._signals.exchange()
        known = self.pop_signal()
        return asked or known

    def stops_before_step(self) -> bool:
        """True if a callback of any rank stopped the run before the epoch's first step.

        With one rank a stop set at on_step_begin counts, too; with several, the other ranks would wait.
        """
        if launch().world_size > 1:
            return self._stops
        return any(getattr(self._events.control, name) for name in STOPS)
