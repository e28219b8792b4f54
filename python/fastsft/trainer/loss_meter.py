"""Losses between two logs and over a run (docs/spec/trainer_semantics.md, section 14)."""

from __future__ import annotations


class LossMeter:
    """Sums step losses between logs, and over the run."""

    def __init__(self, step: int = 0) -> None:
        self.logged_step = step
        self._sum = self._before = 0.0
        self._count = 0
        self._last: dict[str, float] = {}

    def add(self, loss: float, grad_norm: float | None, rate: float) -> None:
        """One optimizer step; `grad_norm` None when nothing is clipped, as transformers then logs none."""
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
        self._before, self._sum, self._count, self.logged_step = self._before + total, 0.0, 0, step
        return {**self._last, "loss": total / count} if count else dict(self._last)

    def total(self) -> float:
        """Sum of all step losses since the process began; steps before a resume are not in it."""
        return self._before + self._sum
