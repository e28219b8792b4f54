"""The panels of a run: loss, learning rate, gradient norm. For page, notebook and PNG alike."""

from __future__ import annotations

from dataclasses import dataclass

from fastsft.reporting.loss_history import LossHistory
from fastsft.reporting.svg_chart import WIDTH, Line, chart

_TRAIN = "#4285f4"
_EVALUATIONS = ("#e8710a", "#b8860b", "#c2185b", "#00838f")
_RATE, _NORM = "#8e63ce", "#1e9e6a"
_FEW = 40  # points of a curve that needs no smoothing


@dataclass(frozen=True)
class Panel:
    """Title, lines, and height in the units of svg_chart."""

    title: str
    lines: tuple[Line, ...]
    height: int


def panels(history: LossHistory) -> list[Panel]:
    """The panels to draw, loss first."""
    raw, smooth = history.train, history.train.smoothed()
    many = len(raw) > _FEW
    loss = [Line("train", raw, _TRAIN, 0.35 if many else 1.0, has_marks=not many)]
    if many:
        loss.append(Line("train, smoothed", smooth, _TRAIN))
    for number, (name, curve) in enumerate(history.evaluations.items()):
        loss.append(Line(name, curve, _EVALUATIONS[number % len(_EVALUATIONS)], has_marks=True))
    found = [
        Panel("loss", tuple(loss), 296),
        Panel("learning rate", (Line("learning rate", history.learning_rate, _RATE),), 146),
        Panel("gradient norm", (Line("gradient norm", history.grad_norm, _NORM),), 146),
    ]
    return [panel for panel in found if any(len(line.curve) for line in panel.lines)]


def drawing(
    history: LossHistory, last_step: int | None = None, *, only_loss: bool = False, width: int = WIDTH
) -> str:
    """The panels as SVG, one below the other. last_step: the right end, default the last one logged."""
    end = last_step or history.last_step()
    shown = panels(history)[:1] if only_loss else panels(history)
    return "".join(
        chart(
            panel.title, panel.lines, last_step=end, epochs=history.epochs, height=panel.height, width=width
        )
        for panel in shown
    )
