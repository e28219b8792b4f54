"""Writes `loss.html` and `loss.png`, which show a run's curves, into its output directory."""

from __future__ import annotations

import importlib.util
import io
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from fastsft import _C
from fastsft.callbacks.callback import TrainerCallback
from fastsft.ranks.output_directory import check_still_held
from fastsft.reporting.chart import NARROW, WIDTH, Curve
from fastsft.reporting.console_text import duration_text
from fastsft.reporting.end_page import talk_command
from fastsft.reporting.loss_history import LossHistory, Panel, drawing, panels
from fastsft.reporting.page import card, html_page, html_text
from fastsft.reporting.samples import samples_html
from fastsft.runtime.messages import warn_once
from fastsft.runtime.output_files import write_output

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from fastsft.arguments import TrainingArguments
    from fastsft.callbacks.callback import TrainerControl
    from fastsft.callbacks.state import TrainerState

FINISHED = "finished"
PAGE_NAME, PICTURE_NAME = "loss.html", "loss.png"
# Drawing with matplotlib takes most of a second, so saves in quick succession do not redraw.
_SECONDS_BETWEEN = 20.0
_PAGE_WIDTHS = {"wide": WIDTH, "narrow": NARROW}
_PICTURE_INCHES, _DOTS_PER_INCH = 9.0, 110


class LossReports(TrainerCallback):
    """Callback that writes the curves at each save and when a run ends, even if it ends early.

    Only global rank 0 writes, and only with --plot_loss. If the files cannot be written, a single warning is
    printed.
    """

    def __init__(self, title: str, model: str = "") -> None:
        """Set the page's texts. title: heading of the page. model: the model's directory."""
        self._title, self._model = title, model
        self._started = self._written_at = time.monotonic()

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        self._started = time.monotonic()
        self._written_at = -_SECONDS_BETWEEN

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        due = time.monotonic() - self._written_at >= _SECONDS_BETWEEN
        if due and state.global_step < state.max_steps:
            self._write(args, state, "running")

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
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
    """Write loss.html, and loss.png if matplotlib is installed. OSError if `directory` is not writable.

    outcome: state of the run, such as FINISHED. seconds: duration of the run. about: names and texts of
    further cards, as from `run_facts`.
    """
    history = LossHistory.of(state.log_history)
    shown = {**facts(state, history, outcome, seconds), **(about or {})}
    talk = talk_command(directory) if outcome == FINISHED else ""
    replies = samples_html(state.log_history)
    page = loss_page(history, title, shown, state.max_steps, talk, replies)
    directory.mkdir(parents=True, exist_ok=True)
    write_output(directory / PAGE_NAME, page)
    if not has_matplotlib():
        return
    try:
        picture = loss_picture(history, title)
    except Exception as error:  # matplotlib may be broken or misconfigured
        first = next(iter(str(error).splitlines()), "")
        warn_once(f"{PICTURE_NAME} is left out: matplotlib: {type(error).__name__}: {first}")
    else:
        write_output(directory / PICTURE_NAME, picture)


def run_facts(args: TrainingArguments, model: str) -> dict[str, str]:
    """Return the settings that help to interpret the curves: texts by name."""
    sizes = (args.train_batch_size, args.gradient_accumulation_steps, args.data_parallel_size)
    rate = f"{args.learning_rate:g}, {args.lr_scheduler_type}"
    about = {
        "learning rate": rate,
        "batch": " x ".join(map(str, sizes)),
        "longest row": f"{args.model_max_length:,}",
    }
    return {**({"model": Path(model).name} if model else {}), **about}


def facts(state: TrainerState, history: LossHistory, outcome: str, seconds: float) -> dict[str, str]:
    """Return the progress and the best losses for the cards above the curves: texts by name."""
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


def loss_page(
    history: LossHistory,
    title: str,
    facts: Mapping[str, str],
    max_steps: int,
    talk: str = "",
    replies: str = "",
) -> str:
    """Return the HTML page.

    facts: names and texts of the cards. talk: the chat command, shown if the run has finished. replies: a
    table of sample replies as HTML.
    """
    cards = "".join(card(html_text(name), html_text(value)) for name, value in facts.items())
    end = max(history.last_step(), 0) or max_steps
    drawn = {name: drawing(history, end, width=width) for name, width in _PAGE_WIDTHS.items()}
    curves = "".join(
        f'<div class="{name}">{text or "<p>nothing has been logged yet</p>"}</div>'
        for name, text in drawn.items()
    )
    ending = f'<p class="talk">Talk to the model: <code>{html_text(talk)}</code></p>' if talk else ""
    body = (
        f"<h1>{html_text(title)}</h1><section class='cards'>{cards}</section>"
        f'<main id="curves">{curves}</main>{replies}{ending}'
    )
    return html_page(title, body, ("points", _points(history)), ("fastsft.reporting", "loss_page"))


def _points(history: LossHistory) -> dict[str, list[list[float]]]:
    """Return [steps, values] of each curve by name, which the page's script shows at the mouse pointer."""
    curves = {
        "loss": history.train,
        "smoothed": history.train.smoothed(),
        **{f"{name} loss": curve for name, curve in history.evaluations.items()},
        "learning rate": history.learning_rate,
        "gradient norm": history.grad_norm,
    }
    return {name: _columns(curve.thinned(2000)) for name, curve in curves.items() if len(curve)}


def _columns(curve: Curve) -> list[list[float]]:
    return [list(curve.steps), [float(f"{value:.6g}") for value in curve.values]]


def has_matplotlib() -> bool:
    """True if matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def loss_picture(history: LossHistory, title: str) -> bytes:
    """Return the curves as a PNG file, without a display and without changing matplotlib's global state.

    `history` must not be empty.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    shown = panels(history)
    heights = [panel.height for panel in shown]
    figure = Figure(
        figsize=(_PICTURE_INCHES, sum(heights) / 75 + 0.6), dpi=_DOTS_PER_INCH, layout="constrained"
    )
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(shown), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    for axis, panel in zip(axes, shown, strict=True):
        _draw(axis, panel, history)
    axes[0].set_title(title, fontsize=10, loc="left")
    axes[-1].set_xlabel("step")
    content = io.BytesIO()
    figure.savefig(content, format="png")
    return content.getvalue()


def _draw(axis: Axes, panel: Panel, history: LossHistory) -> None:
    for line in panel.lines:
        curve = line.curve.thinned(4000)
        marks = "o" if (line.has_marks and len(curve) <= 60) or len(curve) == 1 else None
        axis.plot(
            curve.steps, curve.values, color=line.colour, alpha=line.opacity, label=line.name,
            linewidth=1.4, marker=marks, markersize=3,
        )  # fmt: skip
    for epoch, step in history.epochs[:: len(history.epochs) // 12 + 1]:
        axis.axvline(step, color="grey", linewidth=0.7, linestyle=":")
        if panel.title == "loss":
            axis.annotate(
                f"epoch {epoch}", (step, 1), xycoords=("data", "axes fraction"), ha="right", va="top",
                fontsize=7, color="grey", rotation=90,
            )  # fmt: skip
    axis.grid(alpha=0.25)
    axis.set_ylabel(panel.title, fontsize=9)
    axis.tick_params(labelsize=8)
    if len(panel.lines) > 1:
        axis.legend(fontsize=8, frameon=False)
