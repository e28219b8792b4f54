"""Steps with finite numbers that say that nothing is learned, or that the model is ruined."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from fastsft.runtime.messages import tell

if TYPE_CHECKING:
    from fastsft import _C

_FAR = 2.0  # times the loss of the start: above it, and above that of guessing, a model has lost what it knew


class LossWatch:
    """Looks at the result of each step; a line for the first of a kind, and `faults` for the end page.

    vocab_size: whose logarithm is the loss of a model that guesses, each token as likely as any other.
    """

    def __init__(self, vocab_size: int, learning_rate: float) -> None:
        self._guessing, self._rate = math.log(max(vocab_size, 2)), learning_rate
        self._start: float | None = None
        self._last = 0.0
        self._num_steps = self._num_idle = self._num_bare = self._num_ruined = 0

    def begin(self, log_history: Iterable[Mapping[str, Any]]) -> None:
        """Of a run that goes on: its first logged loss is that of the start."""
        logged = [entry["loss"] for entry in log_history if isinstance(entry.get("loss"), int | float)]
        self._start = next((float(loss) for loss in logged if loss > 0), None)

    def look_at(self, step: int, result: _C.StepResult, *, has_targets: bool) -> None:
        """Take the result of a step that counts."""
        self._num_steps += 1
        if not has_targets:
            self._num_bare += 1
            self._say_once(self._num_bare, f"step {step}: {_BARE}")
            return
        self._last = result.loss
        self._start = result.loss if self._start is None else self._start
        if result.grad_norm == 0.0:
            self._num_idle += 1
            self._say_once(self._num_idle, f"step {step}: {_IDLE} (loss {result.loss:.4g}){self._advice()}")
        if self.is_ruined:
            self._num_ruined += 1
            self._say_once(self._num_ruined, f"step {step}: {self._ruin()}{self._advice()}")

    def faults(self) -> Iterator[str]:
        """Lines for the end page."""
        if self._num_idle:
            yield f"{_IDLE} in {self._num_idle:,} of {self._num_steps:,} steps"
        if self.is_ruined:
            yield f"{self._ruin()}: the weights are of no use"
        if self._num_bare:
            yield f"{self._num_bare:,} of {self._num_steps:,} steps had no token to learn"

    @property
    def is_ruined(self) -> bool:
        """The newest loss is one that the best one says nothing about."""
        return self._start is not None and self._last > max(_FAR * self._start, 1.1 * self._guessing)

    def _ruin(self) -> str:
        return (
            f"the loss is {self._last:,.4g}, after {self._start or 0.0:.4g} at the start and where guessing "
            "has "
            f"{self._guessing:.3g}"
        )

    def _advice(self) -> str:
        return (
            f"; lower --learning_rate ({self._rate:g}), raise --warmup_ratio, or let --loss_spike_factor "
            "leave "
            "such steps out"
        )

    @staticmethod
    def _say_once(count: int, line: str) -> None:
        if count == 1:
            tell(line)


_IDLE = "the gradient is exactly 0, so that nothing is learned"
_BARE = (
    "none of its conversations has a token to learn: its loss is 0, and counts for nothing; weight decay and "
    "moments act all the same"
)
