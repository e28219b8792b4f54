"""Events of a run, and the switches of TrainerControl (should_save, ...) that callbacks set.

Ranks exchange the switches, so that all ranks log, evaluate, save and stop at the same steps.
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
    """Set the steps between logs, evaluations and checkpoints in `state`.

    A value below 1 is a fraction of `max_steps`, rounded up to whole steps.
    """
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
    """The callback that sets the switches from the strategies and intervals in the arguments.

    It does the same as transformers' DefaultFlowCallback (docs/spec/trainer_semantics.md, section 15).
    """

    def on_step_end(
        self, args: ArgumentFields, state: TrainerState, control: TrainerControl, **_: object
    ) -> TrainerControl:
        """Set should_log, should_evaluate and should_save at their step intervals.

        At `max_steps` stop, and also save if save_strategy is "steps".
        """
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
        """Set should_log, should_evaluate and should_save if their strategy is "epoch"."""
        control.should_log |= args.logging_strategy == "epoch"
        control.should_evaluate |= args.eval_strategy == "epoch" and (args.eval_delay or 0) <= (
            state.epoch or 0
        )
        control.should_save |= args.save_strategy == "epoch"
        return control


def handles_on_save(callback: object) -> bool:
    """True if a script or a library other than fastsft wrote the callback's `on_save`.

    Such a method may read the checkpoint: transformers' trackers, for example, upload it.
    """
    method = plain(getattr(callback, "on_save", None))
    if method is None or is_written_in(method, "fastsft"):
        return False
    return _CALLBACKS not in sys.modules or not is_defined_there(
        method, _CALLBACKS, "TrainerCallback.on_save"
    )


class Events:
    """The callbacks of a run, which are called at each event, and the switches that they set.

    around: function that returns a context manager for an event name, entered around the event's callbacks.
    compat/guard.py uses this context to follow a script's changes.
    """

    def __init__(
        self,
        args: ArgumentFields,
        around: Callable[[str], AbstractContextManager[None]] = lambda event: nullcontext(),
    ) -> None:
        self.callbacks: list[Any] = []
        self.args, self._around = args, around
        self.control = TrainerControl()
        self.set_by: dict[str, str] = {}  # switch set at the last event -> class name of the callback

    def fire(self, event: str, **kwargs: object) -> None:
        """Call `event` of all callbacks. ValueError if they made a change that the run cannot follow."""
        with self._around(event):
            self._call(event, self._state, **self._values(), **kwargs)

    def attach(self, state: TrainerState, values: Callable[[], dict[str, object]]) -> None:
        """Pass `state`, the state of a new run, to callbacks from now on.

        values: function that returns the keyword arguments of every event.
        """
        self._state, self._values = state, values

    def add(self, callback: object) -> None:
        """Append a callback. If `callback` is a class, append a new instance of the class.

        TypeError for an object without a method for any event, such as a function.
        """
        made = callback() if isinstance(callback, type) else callback
        if not any(name.startswith("on_") for name in dir(made)) and not hasattr(made, "on_step_end"):
            raise TypeError(
                f"callbacks: expected objects with methods such as on_step_end, got {made!r}; derive a "
                "class from fastsft.callbacks.TrainerCallback"
            )
        self.callbacks.append(made)

    def pop(self, callback: object) -> object:
        """Remove and return `callback`, or its first instance if it is a class. Return None if not found.

        ValueError for a class by which transformers would remove its DefaultFlowCallback, the first callback
        in its list.
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
        """Raise ValueError if a script has removed DefaultFlow, on which the plan of a run depends."""
        if not any(type(known) is DefaultFlow for known in self.callbacks):
            raise ValueError(_kept_flow("callback_handler.callbacks without DefaultFlow"))

    def states(self) -> dict[str, object]:
        """Return the callbacks' states by class name, for trainer_state.json.

        A class with several instances has a list of states.
        """
        found: dict[str, list[object]] = {}
        for item in (*self._stateful(), self.control):
            found.setdefault(type(item).__name__, []).append(item.state())
        return {name: states[0] if len(states) == 1 else states for name, states in found.items()}

    def restore(self, states: dict[str, Any], *, of_scripts: bool) -> None:
        """Restore the callbacks from `states`. Several instances of a class take their states in order.

        of_scripts: False to restore only the attributes of the run's own callback, early stopping by flag.
        """
        left = {name: list(item) if isinstance(item, list) else [item] for name, item in states.items()}
        for callback in self._stateful():
            known = left.get(type(callback).__name__)
            if not known:
                continue
            entry, is_of_run = known.pop(0), getattr(callback, "is_of_run", False)
            values = entry["attributes"] if is_of_run else {**entry["args"], **entry["attributes"]}
            for name, value in values.items() if is_of_run or of_scripts else ():
                setattr(callback, name, value)

    def _stateful(self) -> list[Any]:
        return [item for item in self.callbacks if callable(getattr(item, "state", None))]

    def _call(self, event: str, state: TrainerState, **kwargs: object) -> None:
        """Clear the switches that `event` resets, then call `event` of every callback."""
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
    """Return the numbers among rank 0's metrics, so that all ranks make the same decisions. Collective.

    metric_for_best_model is always included. With one rank, return `metrics` unchanged.
    """
    if launch().world_size == 1:
        return metrics
    name = metric_key(args.metric_for_best_model or "loss")
    numbers = {key: value for key, value in metrics.items() if isinstance(value, Real) or key == name}
    return gather_objects(numbers)[0]


@contextmanager
def of_first_rank(args: TrainingArguments, metrics: dict[str, Any]) -> Iterator[None]:
    """Replace the numbers in `metrics` by rank 0's numbers while the context is open. Collective.

    Afterwards `metrics` has this rank's own numbers again, except for entries that a callback has changed.
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
    """A SignalGuard that exchanges signals and boolean flags of the training loop in one collective."""

    def __enter__(self) -> RunGuard:
        super().__enter__()
        return self

    def exchange(self, bits: Sequence[bool] = ()) -> tuple[int, list[bool]]:
        """Return the most urgent pending signal of all ranks, or 0, and `bits` joined by logical or.

        Collective.
        """
        noted, found = self._noted(), list(bits)
        if launch().world_size > 1:
            ends = 0 if noted == self.only_save else noted
            ends, noted, *numbers = _greatest([ends, noted, *map(int, bits)])
            noted, found = ends or noted, [number > 0 for number in numbers]
        if noted == self.only_save:
            self._is_to_save = False
        return noted, found


def _greatest(numbers: list[int]) -> list[int]:
    """Return the maximum of each number over all ranks. Collective."""
    import torch
    import torch.distributed as dist

    values = torch.tensor(numbers)
    with host_collective("agreement on signals and on the switches of callbacks"):
        dist.all_reduce(values, op=dist.ReduceOp.MAX)
    return [int(value) for value in values.tolist()]


class AgreedControl:
    """The callbacks' switches and the pending signals, exchanged so that they are the same on all ranks.

    refused_stop: function that returns the error message about a stop that a callback set within a step,
    when the step could no longer be stopped; None without such a stop.
    """

    def __init__(self, events: Events, signals: RunGuard, refused_stop: Callable[[], str | None]) -> None:
        self._events, self._signals, self._refused_stop = events, signals, refused_stop
        self._asked = 0  # pending signal that all ranks know; 0 if there is none
        self._stops = False  # True if any rank had set a stop switch at the last `agree`

    def agree(self, *, logged: bool = False) -> bool:
        """Set every switch (should_save, ...) that is set on any rank. Collective.

        logged: True if this rank has logged at this step. Return True if some ranks have logged and others
        have not. ValueError on all ranks if `refused_stop` returns a message on any rank.
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
        """Return and clear the pending signal that all ranks know; 0 if there is none."""
        asked, self._asked = self._asked, 0
        return asked

    def exchange_signals(self) -> int:
        """Exchange signals between ranks; return and clear the signal to handle now, or 0. Collective."""
        asked, _ = self._signals.exchange()
        known = self.pop_signal()
        return asked or known

    def stops_before_step(self) -> bool:
        """True if a callback has stopped the run or the epoch before the next step.

        With one rank, a stop set at on_step_begin counts, too. With several ranks, only stops of the last
        `agree` count: if one rank alone skipped the step, the other ranks would wait for it.
        """
        if launch().world_size > 1:
            return self._stops
        return any(getattr(self._events.control, name) for name in STOPS)
