"""The curves of a run, from `log_history`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any


@dataclass(frozen=True)
class Curve:
    """Values over optimizer steps; steps grow, values are finite."""

    steps: tuple[int, ...] = ()
    values: tuple[float, ...] = ()

    def __len__(self) -> int:
        return len(self.steps)

    def best(self) -> tuple[int, float] | None:
        """Step and value of the smallest one."""
        return min(zip(self.steps, self.values, strict=True), key=lambda point: point[1], default=None)

    def smoothed(self, span: float | None = None) -> Curve:
        """Exponential mean over about `span` points to both sides, so that it does not lag.

        span: default a twentieth of all points, at least 3.
        """
        keep = 1 - 1 / max(span or len(self) / 20, 3)
        before = _decaying_sums(self.values, keep)
        after = _decaying_sums(self.values[::-1], keep)[::-1]
        weights = _decaying_sums((1.0,) * len(self), keep)
        values = tuple(
            (left + right - value) / (weight + other - 1)
            for left, right, value, weight, other in zip(
                before, after, self.values, weights, weights[::-1], strict=True
            )
        )
        return Curve(self.steps, values)

    def thinned(self, most: int = 1000) -> Curve:
        """At most about `most` points: the smallest and largest of each stretch, so that no spike is lost."""
        if len(self) <= most:
            return self
        stretch = math.ceil(2 * len(self) / most)
        kept: list[int] = []
        for begin in range(0, len(self), stretch):
            indices = range(begin, min(begin + stretch, len(self)))
            kept += sorted(
                {min(indices, key=self.values.__getitem__), max(indices, key=self.values.__getitem__)}
            )
        return Curve(tuple(self.steps[i] for i in kept), tuple(self.values[i] for i in kept))


@dataclass(frozen=True)
class LossHistory:
    """All curves of a run. evaluations: by name, `eval` or `eval_<data set>`. epochs: (epoch, first step)."""

    train: Curve = field(default_factory=Curve)
    evaluations: dict[str, Curve] = field(default_factory=dict)
    learning_rate: Curve = field(default_factory=Curve)
    grad_norm: Curve = field(default_factory=Curve)
    epochs: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, log_history: Iterable[Mapping[str, Any]]) -> LossHistory:
        """From the entries of trainer_state.json; values that are not finite leave a gap."""
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
        """Nothing to draw."""
        return not len(self.train) and not any(len(curve) for curve in self.evaluations.values())

    def last_step(self) -> int:
        """0 when empty."""
        curves = [self.train, *self.evaluations.values()]
        return max((curve.steps[-1] for curve in curves if len(curve)), default=0)


def _decaying_sums(values: tuple[float, ...], keep: float) -> list[float]:
    """At each place the sum of all values up to there, those further back the less."""
    return list(accumulate(values, lambda total, value: keep * total + value))


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
    """The step nearest to each whole epoch that was passed, from the epochs of the logs."""
    known = [
        (float(entry["epoch"]), entry["step"]) for entry in entries if entry.get("epoch") and entry["step"]
    ]
    if not known:
        return ()
    epoch, step = max(known, key=lambda pair: pair[1])
    steps_per_epoch = step / epoch
    return tuple((number, round(number * steps_per_epoch)) for number in range(1, int(epoch + 1e-9) + 1))
