"""`loss.png`: the curves of a run as a picture, drawn by matplotlib where it is installed."""

from __future__ import annotations

import importlib.util
import io
from typing import TYPE_CHECKING

from fastsft.reporting.loss_history import LossHistory
from fastsft.reporting.loss_panels import Panel, panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_DOTS_PER_INCH = 110
_WIDTH_INCHES = 9.0


def has_matplotlib() -> bool:
    """True if pictures can be drawn."""
    return importlib.util.find_spec("matplotlib") is not None


def loss_picture(history: LossHistory, title: str) -> bytes:
    """A PNG with the panels of `history`, which is not empty. No display, no global state."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    shown = panels(history)
    heights = [panel.height for panel in shown]
    figure = Figure(
        figsize=(_WIDTH_INCHES, sum(heights) / 75 + 0.6), dpi=_DOTS_PER_INCH, layout="constrained"
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
