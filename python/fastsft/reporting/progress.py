"""Measures a run's steps, and shows its progress on global rank 0."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from fastsft.arguments import TrainingArguments
from fastsft.callbacks.callback import TrainerCallback, TrainerControl
from fastsft.callbacks.state import TrainerState
from fastsft.planning.devices import peak_memory
from fastsft.reporting.progress_displays import ProgressBar, ProgressLines
from fastsft.reporting.status import CONSOLE_VARIABLE, Display, ProgressEvents, Run, Status
from fastsft.reporting.throughput import Pace, Work

if TYPE_CHECKING:
    from typing import TextIO

_SECONDS_BETWEEN_SHOWS = 0.1


class Progress(TrainerCallback):
    """Callback that updates and shows the run's `status`; `pace` measures times and tokens.

    stream: the terminal; default: standard error. work: FLOPs, from which MFU is computed; None if the
    device's peak is unknown.
    """

    def __init__(
        self, args: TrainingArguments, stream: TextIO | None = None, work: Work | None = None
    ) -> None:
        self.args, self.work = args, work
        self.pace, self.status = Pace(), Status()
        self._displays = displays(args, stream or sys.stderr) if args.process_index == 0 else []
        self._shown_at = 0.0
        self._training = False

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        self.pace.restart(state.global_step)
        self.status = Status(step=state.global_step, max_steps=state.max_steps, epoch=state.epoch)
        self._training = True
        run = Run(str(args.output_dir), list(state.log_history))
        self._on_displays(lambda display: display.begin(self.status, run))

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
        self.pace.step_done(state.global_step, step_tokens)
        self.status.step, self.status.epoch = state.global_step, state.epoch
        for name, value in (step_logs or {}).items():
            setattr(self.status, name, value)
        if self._is_due() or state.global_step == state.max_steps:
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
        """Show a log entry. A training's last entry, which has train_runtime, stops the clock."""
        if logs is not None and "train_runtime" in logs:
            self.pace.stop()
        if logs is None or not self._displays:
            return
        self.status.step, self.status.max_steps = state.global_step, state.max_steps
        self._measure(state)
        self._on_displays(lambda display: display.log(logs, self.status))

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        self._end()

    def on_train_stopped(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        """Close the progress bar, so that an error message is printed below the bar."""
        self._end()

    @contextmanager
    def phase(self, name: str, detail: str = "") -> Iterator[Callable[[int, int], None]]:
        """Time work between steps, such as `evaluating`; yield a function (done, total) that shows progress.

        The time does not count as step time. The mean time of the phases with the same name is used to
        predict the remaining time.
        """
        self._on_displays(lambda display: display.note(f"{name} {detail}".strip(), self.status))
        self._set_phase(name)
        try:
            with self.pace.phase(name):
                yield lambda done, total: self._set_phase(f"{name} {done}/{total}", done == total)
        finally:
            self._set_phase("")

    def tokens_per_second(self) -> float:
        """Return tokens per second since the run began, over all ranks and without padding."""
        return self.pace.overall_tokens_per_second()

    def _set_phase(self, text: str, at_once: bool = True) -> None:
        self.status.phase = text
        if self._training and (at_once or self._is_due()):
            self._show()

    def _is_due(self) -> bool:
        return time.monotonic() - self._shown_at >= _SECONDS_BETWEEN_SHOWS

    def _show(self) -> None:
        self._shown_at = time.monotonic()
        self._on_displays(lambda display: display.show(self.status))

    def _measure(self, state: TrainerState) -> None:
        status, pace = self.status, self.pace
        status.tokens_per_second = pace.tokens_per_second()
        if self.work is not None and status.tokens_per_second:
            status.utilization = self.work.utilization(status.tokens_per_second)
        status.peak_memory = peak_memory(str(self.args.device))
        status.seconds_left = pace.seconds_left(state.max_steps, phases_left(self.args, state))

    def _end(self) -> None:
        if self._training:
            self._training = False
            self.pace.stop()
            self._on_displays(lambda display: display.end())

    def _on_displays(self, act: Callable[[Display], None]) -> None:
        """Call `act` for each display; ignore displays that cannot be written, such as a closed terminal."""
        for display in self._displays:
            with suppress(OSError):
                act(display)


def displays(args: TrainingArguments, stream: TextIO | None) -> list[Display]:
    """Return a run's displays.

    If a parent process reads events, there is a display that sends them. On the console, there is a bar if
    the terminal supports it, and otherwise lines.
    """
    events = ProgressEvents.of(os.environ)
    chosen: list[Display] = [] if events is None else [events]
    if os.environ.get(CONSOLE_VARIABLE) == "none":
        return chosen
    if stream is None or not stream.isatty() or os.environ.get("TERM") == "dumb" or args.disable_tqdm:
        return [*chosen, ProgressLines()]
    return [*chosen, ProgressBar(stream)]


def phases_left(args: TrainingArguments, state: TrainerState) -> dict[str, int]:
    """Return how many phases are still to come, by their names "evaluating" and "saving"."""
    left = {}
    for name, strategy, interval in (
        ("evaluating", args.eval_strategy, state.eval_steps),
        ("saving", args.save_strategy, state.save_steps),
    ):
        if strategy == "steps" and interval:
            left[name] = int(state.max_steps // interval) - int(state.global_step // interval)
        elif strategy == "epoch":
            left[name] = max(state.num_train_epochs - int(state.epoch or 0), 0)
    return left
