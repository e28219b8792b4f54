"""Base class for trackers, which log on global rank 0, and their selection by `--report_to`."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import pkgutil
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Protocol, cast

from fastsft.callbacks.callback import TrainerCallback, TrainerControl
from fastsft.callbacks.samples import SAMPLES
from fastsft.callbacks.state import TrainerState
from fastsft.runtime.launch import launch
from fastsft.runtime.messages import warn_once

_log = logging.getLogger("fastsft")
Values = Mapping[str, object]  # an entry of log_history


class TrackedArguments(Protocol):
    """The part of TrainingArguments that trackers use."""

    @property
    def output_dir(self) -> str | None: ...
    @property
    def logging_dir(self) -> str | None: ...
    def to_dict(self) -> dict[str, Any]: ...
    def to_json_string(self) -> str: ...


class TrackedModel(Protocol):
    """The part of a model that trackers use; the model may also have a `config`."""

    def num_parameters(self) -> int: ...


class Tracker(TrainerCallback):
    """Base class for trackers.

    name: the value for --report_to. library: the name for import and pip. An error in `open` ends the
    training, which has not begun yet. A later error is logged once and switches the tracker off, so that a
    server that does not answer cannot end a training. An error with sample replies switches only these off.
    Evaluations after a training are logged to its tracker run. That run ends when training stops early, when
    another Trainer begins training, or at exit.
    """

    name: ClassVar[str]
    library: ClassVar[str]
    _current: ClassVar[
        dict[str, Tracker]
    ] = {}  # tracker name -> the tracker that owns its library's current run

    def __init__(self) -> None:
        self._is_open = self._is_off = self._trains = self._lacks_samples = False

    @classmethod
    def check(cls, args: TrackedArguments) -> None:
        """Raise ValueError if `open` would be unable to write. Called before data is read."""
        return

    def open(self, args: TrackedArguments, state: TrainerState, model: TrackedModel | None) -> None:
        """Begin a run in the tracker's library."""
        raise NotImplementedError

    def log(self, logs: Values, step: int) -> None:
        """Log a step's values."""
        raise NotImplementedError

    def log_samples(self, samples: list[dict[str, str]], step: int) -> None:
        """Log prompts and replies, dictionaries with `prompt` and `reply`."""
        raise NotImplementedError

    def end(self) -> None:
        """Close the run after a training; a later evaluation opens a new run."""
        self.stop()

    def close(self, *, failed: bool) -> None:
        """End the run. failed: True if the training stopped early."""
        raise NotImplementedError

    def is_lost(self) -> bool:
        """True if the script has ended the run."""
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
        """Log values; first open a tracker that is not open, as in an evaluation without training."""
        self._begin(args, state, model, training=False)
        if self._is_open and logs and SAMPLES in logs:
            samples = cast("list[dict[str, str]]", logs[SAMPLES])
            self._send_samples(samples, state.global_step)
        elif self._is_open and logs:
            self._guarded(lambda: self.log(logs, state.global_step))

    def on_train_end(
        self, args: TrackedArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        self._trains = False
        if self._is_open:
            self._guarded(self.end)

    def on_train_stopped(
        self, args: TrackedArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        self._trains = False
        self.stop(failed=True)

    def stop(self, *, failed: bool = False) -> None:
        """Close an open run. failed: True if the training stopped early."""
        if self._is_open:
            self._guarded(lambda: self.close(failed=failed))
            self._is_open = False
            self.make_room()

    def make_room(self) -> None:
        """Stop owning the library's current run, so that another tracker may begin a run."""
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
            other.stop()  # the other Trainer is not training, or this tracker's Trainer begins to train
        try:
            self.open(args, state, model)
        except ValueError:
            raise
        except Exception as error:  # the libraries raise errors of many types: no server, no login, ...
            raise ValueError(
                f"--report_to {self.name}: expected to begin a run, got {type(error).__name__}: "
                f"{' '.join(str(error).split())}; correct the settings of {self.name}, or leave it out of "
                "--report_to"
            ) from error
        self._is_open, self._is_off, self._lacks_samples = True, False, False
        Tracker._current.setdefault(self.name, self)

    def leave_out(self, name: str, value: object, expected: str) -> None:
        """Warn once that the tracker cannot log this value."""
        kind = type(value).__name__
        warn_once(f"--report_to {self.name}: {name}: expected {expected}, got {kind}; it is not sent there")

    def _send_samples(self, samples: list[dict[str, str]], step: int) -> None:
        if self._is_off or self._lacks_samples:
            return
        try:
            self.log_samples(samples, step)
        except Exception as error:
            self._lacks_samples = True
            _log.warning(
                "--report_to %s: sample replies are not sent there any more, other values are: %s: %s",
                self.name, type(error).__name__, error,
            )  # fmt: skip

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


def check_writable(place: Path, name: str, choose: str) -> None:
    """Raise ValueError if the directory `place` cannot be created or written to; leave no file behind.

    name: setting for the message. choose: words for the way out.
    """
    there = place.absolute()
    while not os.path.lexists(there):
        there = there.parent
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        where = "" if there == place else f" in {there}"
        raise unwritable(name, error, choose, where) from None


def unwritable(name: str, error: OSError, choose: str, where: str = "") -> ValueError:
    """Return the error about a directory that cannot be written to."""
    return ValueError(
        f"{name}: expected a directory to write into, got{where}: {error.strerror or error}; choose {choose}"
    )


def number(value: object) -> float | None:
    """Return `value` as a number if it is a Python or numpy number, or a one-element tensor; else None."""
    if isinstance(value, int | float):
        return value
    try:
        item = value.item()  # type: ignore[attr-defined]
    except (AttributeError, TypeError, ValueError, RuntimeError):  # no such method, or several elements
        return None
    return item if isinstance(item, int | float) else None


def tracker_names(logs: Values) -> dict[str, object]:
    """Return the values under transformers' names, such as eval/loss, test/loss and train/loss."""
    renamed = {}
    for name, value in logs.items():
        prefix = next((p for p in ("eval", "test") if name.startswith(f"{p}_")), None)
        renamed[f"{prefix}/{name[len(prefix) + 1 :]}" if prefix else f"train/{name}"] = value
    return renamed


def run_settings(args: TrackedArguments, model: TrackedModel | None) -> dict[str, Any]:
    """Return the model's configuration merged with the arguments, which take precedence for equal names."""
    config = getattr(model, "config", None)
    return {**(config.to_dict() if config is not None else {}), **args.to_dict()}


@cache
def trackers() -> dict[str, type[Tracker]]:
    """Return all tracker classes by name, without importing their libraries."""
    package = importlib.import_module("fastsft.trackers")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"fastsft.trackers.{module.name}")
    kinds = sorted(Tracker.__subclasses__(), key=lambda kind: kind.name)
    return {kind.name: kind for kind in kinds if kind.__module__.startswith("fastsft.")}


def is_installed(kind: type[Tracker]) -> bool:
    """True if the tracker's library is installed."""
    return importlib.util.find_spec(kind.library) is not None


def requested_trackers(report_to: str | Iterable[str] | None) -> list[str]:
    """Return the names in `--report_to`: a list, or text such as `a b`, `a,b` or `["a", "b"]`."""
    words = [report_to] if isinstance(report_to, str) else report_to or []
    return [name for word in words for name in re.findall(r"""[^\s,\[\]"']+""", str(word))]


def resolve_trackers(report_to: str | Iterable[str] | None) -> list[str]:
    """Return the names of the trackers that `--report_to` selects.

    `none` and None select no tracker, `all` selects those whose library is installed. ValueError for an
    unknown name, for none next to other names, or if the library of a named tracker is missing.
    """
    registry, chosen = trackers(), []
    names = requested_trackers(report_to)
    if "none" in names and len(names) > 1:
        raise ValueError(
            f"--report_to: expected none alone, or names of trackers, got {' '.join(names)}; leave out the "
            "one that is not meant"
        )
    for name in names:
        if name == "none":
            continue
        if name == "all":
            chosen += [tracker for tracker, kind in registry.items() if is_installed(kind)]
            _name_missing()
        elif name not in registry:
            raise ValueError(f"--report_to: expected none, {', '.join(registry)} or all, got {name}")
        elif not is_installed(registry[name]):
            raise ValueError(
                f"--report_to {name}: the library {registry[name].library} is not installed; "
                f"pip install {registry[name].library}, or leave {name} out"
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
    """Return the names of trackers whose library is not installed."""
    return [name for name, kind in trackers().items() if not is_installed(kind)]


def check_trackers(report_to: str | Iterable[str] | None, args: TrackedArguments) -> None:
    """Raise ValueError on global rank 0 if a tracker that `--report_to` selects would be unable to write."""
    for name in resolve_trackers(report_to) if launch().rank == 0 else []:
        trackers()[name].check(args)


def make_trackers(report_to: str | Iterable[str] | None) -> list[Tracker]:
    """Return a new tracker for each name that `--report_to` selects; ValueError as in `resolve_trackers`."""
    return [trackers()[name]() for name in resolve_trackers(report_to)]
