"""Reads a run's curves from `log_history`, and draws them as SVG panels."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fastsft.reporting.chart import WIDTH, Curve, Line, line_chart


@dataclass(frozen=True)
class LossHistory:
    """All curves of a run.

    evaluations: loss curves by name, `eval` or `eval_<data set>`. epochs: (number of epochs, step at their
    end).
    """

    train: Curve = field(default_factory=Curve)
    evaluations: dict[str, Curve] = field(default_factory=dict)
    learning_rate: Curve = field(default_factory=Curve)
    grad_norm: Curve = field(default_factory=Curve)
    epochs: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, log_history: Iterable[Mapping[str, Any]]) -> LossHistory:
        """Read the log entries of trainer_state.json; values that are not finite are left out."""
        entries = [entry for entry in log_history if isinstance(entry.get("step"), int)]
        names = sorted({name for entry in entries for name in entry if _is_evaluation(name)})
        return cls(
            train=_curve(entries, "loss"),
            evaluations={name.removesuffix("_loss"): _curve(entries, name) for name in names},
            learning_rate=_curve(entries, "learning_rate"),
            grad_norm=_curve(entries, "grad_norm"),
            epochs=_epochs(entries),
        )

    @property
    def is_empty(self) -> bool:
        """True if no loss curve has a point."""
        return not len(self.train) and not any(len(curve) for curve in self.evaluations.values())

    def last_step(self) -> int:
        """Return the last step that was logged; 0 if the history is empty."""
        curves = [self.train, *self.evaluations.values()]
        return max((curve.steps[-1] for curve in curves if len(curve)), default=0)


def _is_evaluation(name: str) -> bool:
    return name.startswith("eval_") and name.endswith("_loss")


def _curve(entries: list[Mapping[str, Any]], name: str) -> Curve:
    points = {
        entry["step"]: float(entry[name])
        for entry in entries
        if isinstance(entry.get(name), int | float) and math.isfinite(entry[name])
    }
    steps = sorted(points)
    return Curve(tuple(steps), tuple(points[step] for step in steps))


def _epochs(entries: list[Mapping[str, Any]]) -> tuple[tuple[int, int], ...]:
    """Return (epoch, nearest step) for each whole epoch, computed from the last logged epoch."""
    logged = [
        (float(entry["epoch"]), entry["step"]) for entry in entries if entry.get("epoch") and entry["step"]
    ]
    if not logged:
        return ()
    epoch, step = max(logged, key=lambda pair: pair[1])
    steps_per_epoch = step / epoch
    return tuple((number, round(number * steps_per_epoch)) for number in range(1, int(epoch + 1e-9) + 1))


_TRAIN = "#4285f4"
_EVALUATIONS = ("#e8710a", "#b8860b", "#c2185b", "#00838f")
_RATE, _NORM = "#8e63ce", "#1e9e6a"
_FEW = 40  # curves with at most this many points are not smoothed


@dataclass(frozen=True)
class Panel:
    """A chart with its title, lines and height [pixels]."""

    title: str
    lines: tuple[Line, ...]
    height: int


def panels(history: LossHistory) -> list[Panel]:
    """Return the panels whose curves have points; the loss comes first."""
    raw, smooth = history.train, history.train.smoothed()
    many = len(raw) > _FEW
    loss = [Line("train", raw, _TRAIN, 0.35 if many else 1.0, has_marks=not many)]
    if many:
        loss.append(Line("train, smoothed", smooth, _TRAIN))
    for number, (name, curve) in enumerate(history.evaluations.items()):
        loss.append(Line(name, curve, _EVALUATIONS[number % len(_EVALUATIONS)], has_marks=True))
    all_panels = [
        Panel("loss", tuple(loss), 296),
        Panel("learning rate", (Line("learning rate", history.learning_rate, _RATE),), 146),
        Panel("gradient norm", (Line("gradient norm", history.grad_norm, _NORM),), 146),
    ]
    return [panel for panel in all_panels if any(len(line.curve) for line in panel.lines)]


def drawing(
    history: LossHistory, last_step: int | None = None, *, only_loss: bool = False, width: int = WIDTH
) -> str:
    """Return the panels as SVG, stacked vertically.

    last_step: the right end of the charts; by default the last logged step.
    """
    end = last_step or history.last_step()
    shown = panels(history)[:1] if only_loss else panels(history)
    return "".join(
        line_chart(
            panel.title, panel.lines, last_step=end, epochs=history.epochs, height=panel.height, width=width
        )
        for panel in shown
    )
