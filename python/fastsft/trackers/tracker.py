"""Base of every tracker: it hears the events of a run on global rank 0, and cannot end it."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import pkgutil
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, ClassVar, Protocol

from fastsft.callbacks.callback import TrainerCallback, TrainerControl
from fastsft.callbacks.state import TrainerState
from fastsft.runtime.messages import warn_once
from fastsft.runtime.place import launch

_log = logging.getLogger("fastsft")
Values = Mapping[str, object]  # of a step, as they are in log_history


class TrackedArguments(Protocol):
    """TrainingArguments, as they are told to trackers."""

    @property
    def output_dir(self) -> str | None: ...
    @property
    def logging_dir(self) -> str | None: ...
    def to_dict(self) -> dict[str, Any]: ...
    def to_json_string(self) -> str: ...


class TrackedModel(Protocol):
    """The model of a run; its `config`, where it has one, is told too."""

    def num_parameters(self) -> int: ...


class Tracker(TrainerCallback):
    """Base of trackers. `name`: in --report_to. `library`: what it imports and pip installs.

    A failure while it opens ends the run, which has not begun. One that comes later is told once and switches
    the tracker off: a server that does not answer must not cost a run. Evaluations after a training go into
    its run, which ends when a training stops early, when another Trainer begins, and at exit.
    """

    name: ClassVar[str]
    library: ClassVar[str]
    _current: ClassVar[dict[str, Tracker]] = {}  # by name: whose run is the current one of the library

    def __init__(self) -> None:
        self._is_open = self._is_off = self._trains = False

    @classmethod
    def check(cls, args: TrackedArguments) -> None:
        """Before data are read: ValueError where `open` could not write."""
        return

    def open(self, args: TrackedArguments, state: TrainerState, model: TrackedModel | None) -> None:
        """Begin a run at the tracker."""
        raise NotImplementedError

    def log(self, logs: Values, step: int) -> None:
        """Values of step `step`."""
        raise NotImplementedError

    def end(self) -> None:
        """A training has ended, and evaluations may follow: closes, and the next value opens again."""
        self.stop()

    def close(self, *, failed: bool) -> None:
        """End the run at the tracker. failed: the training stopped early."""
        raise NotImplementedError

    def is_lost(self) -> bool:
        """True if the script has ended the run that was opened here."""
        return False

    def on_train_begin(
        self,
        args: TrackedArguments,
        state: TrainerState,
        control: TrainerControl,
        *,
        model: TrackedModel | None = None,
        **_: object,
    ) -> None:
        """Open, on global rank 0."""
        self._begin(args, state, model, training=True)
        self._trains = True

    def on_log(
        self,
        args: TrackedArguments,
        state: TrainerState,
        control: TrainerControl,
        *,
        logs: Values | None = None,
        model: TrackedModel | None = None,
        **_: object,
    ) -> None:
        """Hand the values over; opens when nobody did, as an evaluation without training does."""
        self._begin(args, state, model, training=False)
        if self._is_open and logs:
            self._guarded(lambda: self.log(logs, state.global_step))

    def on_train_end(
        self, args: TrackedArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        """Evaluations may follow."""
        self._trains = False
        if self._is_open:
            self._guarded(self.end)

    def on_train_stopped(
        self, args: TrackedArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        """Close, as failed."""
        self._trains = False
        self.stop(failed=True)

    def stop(self, *, failed: bool = False) -> None:
        """Close if open. failed: as in `close`."""
        if self._is_open:
            self._guarded(lambda: self.close(failed=failed))
            self._is_open = False
            self.make_room()

    def make_room(self) -> None:
        """The library's current run is no longer this one's."""
        if Tracker._current.get(self.name) is self:
            del Tracker._current[self.name]

    def _begin(
        self, args: TrackedArguments, state: TrainerState, model: TrackedModel | None, *, training: bool
    ) -> None:
        if self._is_open and self.is_lost():
            self._is_open = False
        if self._is_open or not state.is_world_process_zero:
            return
        other = Tracker._current.get(self.name)
        if other is not None and (training or not other._trains):
            other.stop()  # of another Trainer; an evaluation in the middle of its training goes into its run
        self.open(args, state, model)
        self._is_open, self._is_off = True, False
        Tracker._current.setdefault(self.name, self)

    def leave_out(self, name: str, value: object, wanted: str) -> None:
        """The tracker has no place for this value of on_log; a line says so once."""
        kind = type(value).__name__
        warn_once(f"--report_to {self.name}: {name}: expected {wanted}, got {kind}; it is not sent there")

    def _guarded(self, action: Callable[[], None]) -> None:
        if self._is_off:
            return
        try:
            action()
        except Exception as error:
            self._is_off = True
            _log.warning(
                "--report_to %s: switched off, training goes on: %s: %s",
                self.name, type(error).__name__, error,
            )  # fmt: skip


def number(value: object) -> float | None:
    """`value` where it is a number, one of numpy's or a tensor of one element too; else None."""
    if isinstance(value, int | float):
        return value
    try:
        item = value.item()  # type: ignore[attr-defined]
    except (AttributeError, TypeError, ValueError, RuntimeError):  # no such method, or several elements
        return None
    return item if isinstance(item, int | float) else None


def tracker_names(logs: Values) -> dict[str, object]:
    """Names as transformers sends them: eval/loss, test/loss, else train/loss."""
    renamed = {}
    for name, value in logs.items():
        prefix = next((p for p in ("eval", "test") if name.startswith(f"{p}_")), None)
        renamed[f"{prefix}/{name[len(prefix) + 1 :]}" if prefix else f"train/{name}"] = value
    return renamed


def run_settings(args: TrackedArguments, model: TrackedModel | None) -> dict[str, Any]:
    """The model's configuration and the arguments, which win where both have a name."""
    config = getattr(model, "config", None)
    return {**(config.to_dict() if config is not None else {}), **args.to_dict()}


@cache
def trackers() -> dict[str, type[Tracker]]:
    """Every tracker by name; none of their libraries is imported."""
    package = importlib.import_module("fastsft.trackers")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"fastsft.trackers.{module.name}")
    found = sorted(Tracker.__subclasses__(), key=lambda kind: kind.name)
    return {kind.name: kind for kind in found if kind.__module__.startswith("fastsft.")}


def is_installed(kind: type[Tracker]) -> bool:
    """True if the tracker's library can be imported."""
    return importlib.util.find_spec(kind.library) is not None


def resolve_trackers(report_to: str | Iterable[str] | None) -> list[str]:
    """Names of the trackers that `--report_to` asks for: None and none are none, all is what is installed.

    ValueError for a name that does not exist, or whose library is missing.
    """
    asked = [report_to] if isinstance(report_to, str) else list(report_to or [])
    known, chosen = trackers(), []
    for name in asked:
        if name == "none":
            continue
        if name == "all":
            chosen += [each for each, kind in known.items() if is_installed(kind)]
            _name_missing()
        elif name not in known:
            raise ValueError(f"--report_to: expected none, {', '.join(known)} or all, got {name}")
        elif not is_installed(known[name]):
            raise ValueError(
                f"--report_to {name}: the library {known[name].library} is not installed; "
                f"pip install {known[name].library}, or leave {name} out"
            )
        else:
            chosen.append(name)
    return list(dict.fromkeys(chosen))


def _name_missing() -> None:
    missing = missing_trackers()
    if missing:
        libraries = " ".join(trackers()[name].library for name in missing)
        warn_once(
            f"--report_to all: not installed, and left out: {', '.join(missing)}; pip install {libraries}"
        )


def missing_trackers() -> list[str]:
    """Names of trackers whose library is not installed."""
    return [name for name, kind in trackers().items() if not is_installed(kind)]


def check_trackers(report_to: str | Iterable[str] | None, args: TrackedArguments) -> None:
    """ValueError where a tracker of `--report_to` could not write; on global rank 0, which does."""
    for name in resolve_trackers(report_to) if launch().rank == 0 else []:
        trackers()[name].check(args)


def make_trackers(report_to: str | Iterable[str] | None) -> list[Tracker]:
    """A new tracker for each that `--report_to` asks for; ValueError as resolve_trackers."""
    return [trackers()[name]() for name in resolve_trackers(report_to)]
