"""Progress of a run on global rank 0: a bar on a terminal, lines elsewhere, events for a parent process."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Protocol

from fastsft.arguments import TrainingArguments
from fastsft.callbacks.callback import TrainerCallback, TrainerControl
from fastsft.callbacks.state import TrainerState
from fastsft.planning.device_memory import peak_memory
from fastsft.reporting.progress_displays import ProgressBar, ProgressLines
from fastsft.reporting.status import CONSOLE_VARIABLE, ProgressEvents, Run, Status
from fastsft.reporting.throughput import Pace, Work

if TYPE_CHECKING:
    from typing import TextIO

_SECONDS_BETWEEN_SHOWS = 0.1


class Surface(Protocol):
    """Display of progress."""

    def begin(self, status: Status, run: Run) -> None: ...
    def show(self, status: Status) -> None: ...
    def log(self, logs: dict[str, Any], status: Status) -> None: ...
    def say(self, text: str, status: Status) -> None: ...
    def end(self) -> None: ...


class Progress(TrainerCallback):
    """Keeps the `status` of a run and shows it; `pace` has its times and tokens.

    stream: the terminal, standard error by default. work: for MFU, None where it is not known.
    """

    def __init__(
        self, args: TrainingArguments, stream: TextIO | None = None, work: Work | None = None
    ) -> None:
        self.args, self.work = args, work
        self.pace, self.status = Pace(), Status()
        self._surfaces = surfaces(args, stream or sys.stderr) if args.process_index == 0 else []
        self._shown_at = 0.0
        self._begun = False

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        """Begin at the step that the run resumes from."""
        self.pace.restart(state.global_step)
        self.status = Status(step=state.global_step, max_steps=state.max_steps, epoch=state.epoch)
        self._begun = True
        run = Run(str(args.output_dir), list(state.log_history))
        self._on_surfaces(lambda surface: surface.begin(self.status, run))

    def on_step_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        *,
        step_tokens: int = 0,
        step_logs: dict[str, float] | None = None,
        **_: object,
    ) -> None:
        """Count the step and, ten times a second at most, show it."""
        self.pace.step_done(state.global_step, step_tokens)
        self.status.step, self.status.epoch = state.global_step, state.epoch
        for name, value in (step_logs or {}).items():
            setattr(self.status, name, value)
        now = time.monotonic()
        if now - self._shown_at >= _SECONDS_BETWEEN_SHOWS or state.global_step == state.max_steps:
            self._measure(state)
            self._show()

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        *,
        logs: dict[str, Any] | None = None,
        **_: object,
    ) -> None:
        """Show a log; that of the whole run ends its time."""
        if logs is not None and "train_runtime" in logs:
            self.pace.stop()
        if logs is None or not self._surfaces:
            return
        self.status.step, self.status.max_steps = state.global_step, state.max_steps
        self._measure(state)
        self._on_surfaces(lambda surface: surface.log(logs, self.status))

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        """The last step is done."""
        self._end()

    def on_train_stopped(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        """The run ended early; what is printed next is below the bar."""
        self._end()

    @contextmanager
    def phase(self, name: str, what: str = "") -> Iterator[Callable[[int, int], None]]:
        """Something other than steps goes on, `evaluating` or `saving`; yields a function for (done, total).

        what: told where there is no bar. Its time counts for no step, and is part of the time left.
        """
        self._on_surfaces(lambda surface: surface.say(f"{name} {what}".strip(), self.status))
        self._set_phase(name)
        try:
            with self.pace.phase(name):
                yield lambda done, total: self._set_phase(f"{name} {done}/{total}", done == total)
        finally:
            self._set_phase("")

    def tokens_per_second(self) -> float:
        """Real tokens of all ranks a second since the run began; padding does not count."""
        return self.pace.overall_tokens_per_second()

    def _set_phase(self, text: str, at_once: bool = True) -> None:
        self.status.phase = text
        if self._begun and (at_once or time.monotonic() - self._shown_at >= _SECONDS_BETWEEN_SHOWS):
            self._show()

    def _show(self) -> None:
        self._shown_at = time.monotonic()
        self._on_surfaces(lambda surface: surface.show(self.status))

    def _measure(self, state: TrainerState) -> None:
        status, pace = self.status, self.pace
        status.tokens_per_second = pace.tokens_per_second()
        if self.work is not None and status.tokens_per_second:
            status.utilization = self.work.utilization(status.tokens_per_second)
        status.peak_memory = peak_memory(str(self.args.device))
        status.seconds_left = pace.seconds_left(state.max_steps, phases_left(self.args, state))

    def _end(self) -> None:
        if self._begun:
            self._begun = False
            self.pace.stop()
            self._on_surfaces(lambda surface: surface.end())

    def _on_surfaces(self, act: Callable[[Surface], None]) -> None:
        """A surface that cannot be written to, such as a terminal that is gone, costs its lines alone."""
        for surface in self._surfaces:
            with suppress(OSError):
                act(surface)


def surfaces(args: TrainingArguments, stream: TextIO | None) -> list[Surface]:
    """Events if a parent process asks for them; a bar on a terminal that can move its cursor, else lines."""
    shown: list[Surface] = []
    events = ProgressEvents.of(os.environ)
    if events is not None:
        shown.append(events)
    if os.environ.get(CONSOLE_VARIABLE) == "none":
        return shown
    is_terminal = stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"
    if stream is not None and is_terminal and not args.disable_tqdm:
        return [*shown, ProgressBar(stream)]
    return [*shown, ProgressLines()]


def phases_left(args: TrainingArguments, state: TrainerState) -> dict[str, int]:
    """Numbers of evaluations and checkpoints that are still to come."""
    left = {}
    for name, strategy, every in (
        ("evaluating", args.eval_strategy, state.eval_steps),
        ("saving", args.save_strategy, state.save_steps),
    ):
        if strategy == "steps" and every:
            left[name] = int(state.max_steps // every) - int(state.global_step // every)
        elif strategy == "epoch":
            left[name] = max(state.num_train_epochs - int(state.epoch or 0), 0)
    return left
