"""`loss.html` and `loss.png` in the output directory, kept up to date while a run goes on."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from fastsft import _C
from fastsft.callbacks.callback import TrainerCallback
from fastsft.ranks.output_directory import check_still_held
from fastsft.reporting.durations import duration_text
from fastsft.reporting.loss_history import LossHistory
from fastsft.reporting.loss_page import loss_page
from fastsft.reporting.loss_picture import has_matplotlib, loss_picture
from fastsft.reporting.talk_command import talk_command
from fastsft.runtime.messages import warn_once
from fastsft.runtime.output_files import write_output

if TYPE_CHECKING:
    from fastsft.arguments import TrainingArguments
    from fastsft.callbacks.callback import TrainerControl
    from fastsft.callbacks.state import TrainerState

FINISHED = "finished"
PAGE_NAME, PICTURE_NAME = "loss.html", "loss.png"
# matplotlib takes most of a second; between two saves that follow each other quickly nobody looks.
_SECONDS_BETWEEN = 20.0


class LossReports(TrainerCallback):
    """Writes the curves at saves, at the end, and when a run ends early; on global rank 0, with --plot_loss.

    A disk that refuses them is told once and costs nothing else.
    """

    def __init__(self, title: str, model: str = "") -> None:
        """model: its directory, for the page."""
        self._title, self._model = title, model
        self._started = self._written_at = time.monotonic()

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        """The clock starts."""
        self._started = time.monotonic()
        self._written_at = -_SECONDS_BETWEEN

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        """Bring the curves up to date."""
        due = time.monotonic() - self._written_at >= _SECONDS_BETWEEN
        if due and state.global_step < state.max_steps:
            self._write(args, state, "running")

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        """The whole run."""
        self._write(args, state, FINISHED if state.global_step >= state.max_steps else "stopped")

    def on_train_stopped(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        *,
        reason: str = "",
        **_: object,
    ) -> None:
        """As far as it came."""
        self._write(args, state, f"stopped: {reason}")

    def _write(self, args: TrainingArguments, state: TrainerState, outcome: str) -> None:
        if not state.is_world_process_zero or not args.plot_loss:
            return
        history = LossHistory.of(state.log_history)
        if history.is_empty:
            return
        try:
            check_still_held(args.output_dir or ".")
            seconds = time.monotonic() - self._started
            about = run_facts(args, self._model)
            write_loss_files(Path(args.output_dir or "."), state, self._title, outcome, seconds, about)
        except (OSError, _C.FileError) as error:
            warn_once(f"the loss curves cannot be written: {error}")
        self._written_at = time.monotonic()


def write_loss_files(
    directory: Path,
    state: TrainerState,
    title: str,
    outcome: str,
    seconds: float,
    about: Mapping[str, str] | None = None,
) -> None:
    """loss.html, and loss.png where matplotlib is installed, in `directory`. OSError when it takes none.

    about: further facts of the page, of `run_facts`.
    """
    history = LossHistory.of(state.log_history)
    shown = {**facts(state, history, outcome, seconds), **(about or {})}
    talk = talk_command(directory) if outcome == FINISHED else ""
    page = loss_page(history, title, shown, state.max_steps, talk)
    directory.mkdir(parents=True, exist_ok=True)
    write_output(directory / PAGE_NAME, page)
    if not has_matplotlib():
        return
    try:
        picture = loss_picture(history, title)
    except Exception as error:  # of a matplotlib that is broken, or set up in a way that it does not take
        first = next(iter(str(error).splitlines()), "")
        warn_once(f"{PICTURE_NAME} is left out: matplotlib: {type(error).__name__}: {first}")
    else:
        write_output(directory / PICTURE_NAME, picture)


def run_facts(args: TrainingArguments, model: str) -> dict[str, str]:
    """Settings that a curve cannot be read without."""
    sizes = (args.train_batch_size, args.gradient_accumulation_steps, args.world_size)
    rate = f"{args.learning_rate:g}, {args.lr_scheduler_type}"
    about = {
        "learning rate": rate,
        "batch": " x ".join(map(str, sizes)),
        "longest row": f"{args.model_max_length:,}",
    }
    return {**({"model": Path(model).name} if model else {}), **about}


def facts(state: TrainerState, history: LossHistory, outcome: str, seconds: float) -> dict[str, str]:
    """The text above the curves."""
    shown = {"run": outcome, "step": f"{state.global_step:,} of {state.max_steps:,}"}
    if state.epoch is not None:
        shown["epoch"] = f"{state.epoch:.2f}"
    if len(history.train):
        shown["train loss"] = f"{history.train.values[-1]:.4f}"
    for name, curve in history.evaluations.items():
        if (best := curve.best()) is not None:
            shown[f"best {name} loss"] = f"{best[1]:.4f} at step {best[0]:,}"
    shown["time"] = duration_text(seconds)
    return shown
