"""Losses between two logs and over a run (docs/spec/trainer_semantics.md, section 14)."""

from __future__ import annotations

from typing import Any


class LossMeter:
    """Sums step losses between logs, and over the run. step: that after which nothing has been logged.

    A checkpoint has it, so that logs and mean of a resumed run are those of a run that nothing stopped.
    """

    def __init__(self, step: int = 0) -> None:
        self.logged_step = step
        self._sum = self._before = 0.0
        self._count = self._count_before = 0
        self._last: dict[str, float] = {}
        self._is_diluted = False  # since the last log a step had no target, and so the loss 0
        self.diluted: list[int] = []  # steps of logs over such a step: no measure of the model

    @classmethod
    def of_checkpoint(cls, saved: dict[str, Any] | None, step: int) -> LossMeter:
        """Of the content of fastsft_state.json; those of older versions begin at `step` with nothing."""
        meter, state = cls(step), (saved or {}).get("losses")
        if state is not None:
            meter.logged_step, meter._last = state["logged_step"], dict(state["last"])
            meter._sum, meter._count = state["sum"], state["count"]
            meter._before, meter._count_before = state["before"], state["count_before"]
            meter.diluted, meter._is_diluted = list(state.get("diluted", [])), state.get("is_diluted", False)
        return meter

    def to_json(self) -> dict[str, Any]:
        """As it is in fastsft_state.json."""
        return {
            "logged_step": self.logged_step,
            "last": self._last,
            "sum": self._sum,
            "count": self._count,
            "before": self._before,
            "count_before": self._count_before,
            "diluted": self.diluted,
            "is_diluted": self._is_diluted,
        }

    def add(self, loss: float, grad_norm: float | None, rate: float, *, has_targets: bool = True) -> None:
        """One optimizer step; `grad_norm` None when nothing is clipped, as transformers then logs none."""
        self._is_diluted |= not has_targets
        self._sum += loss
        self._count += 1
        norm = {} if grad_norm is None else {"grad_norm": grad_norm}
        self._last = {"loss": loss, **norm, "learning_rate": rate}

    def last(self) -> dict[str, float]:
        """Values of the newest step."""
        return self._last

    def take(self, step: int) -> dict[str, float]:
        """The log entry of the steps since the last one: mean loss, and the newest norm and learning rate.

        Steps that were left out do not count; when all were, the newest values stay.
        """
        count, total = self._count, self._sum
        self._before, self._count_before = self._before + total, self._count_before + count
        self._sum, self._count, self.logged_step = 0.0, 0, step
        self.diluted += [step] if self._is_diluted else []
        self._is_diluted = False
        return {**self._last, "loss": total / count} if count else dict(self._last)

    def mean(self) -> float:
        """Over all steps of the run, also those before a resume; 0 before the first."""
        return (self._before + self._sum) / max(self._count_before + self._count, 1)
