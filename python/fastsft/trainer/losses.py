"""Mean losses for logs and for the whole run (docs/spec/trainer_semantics.md, section 14)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from fastsft.runtime.messages import tell

if TYPE_CHECKING:
    from fastsft import _C


class LossMeter:
    """Sums of the step losses, since the last log and over the whole run. step: the step of the last log.

    Checkpoints store these sums, so that a resumed run logs the same losses as an uninterrupted run.
    """

    def __init__(self, step: int = 0) -> None:
        self.logged_step = step
        self._sum = self._before = 0.0
        self._count = self._count_before = 0
        self._last: dict[str, float] = {}
        self._is_diluted = False  # True if a step since the last log had no target and therefore loss 0
        self.diluted: list[int] = []  # steps of log entries whose mean loss includes such a 0

    def restore(self, state: dict[str, Any] | None, step: int) -> None:
        """Restore the entry `losses` of fastsft_state.json. None, as in older files, starts empty sums."""
        state = state or LossMeter(step).to_json()
        self.logged_step, self._last = state["logged_step"], dict(state["last"])
        self._sum, self._count = state["sum"], state["count"]
        self._before, self._count_before = state["before"], state["count_before"]
        self.diluted, self._is_diluted = list(state.get("diluted", [])), state.get("is_diluted", False)

    def to_json(self) -> dict[str, Any]:
        """Return the entry `losses` of fastsft_state.json."""
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
        """Add one optimizer step.

        grad_norm: None without clipping, since transformers then logs no norm. rate: the learning rate.
        """
        self._is_diluted |= not has_targets
        self._sum += loss
        self._count += 1
        norm = {} if grad_norm is None else {"grad_norm": grad_norm}
        self._last = {"loss": loss, **norm, "learning_rate": rate}

    def last(self) -> dict[str, float]:
        """Return loss, gradient norm and learning rate of the newest step, by their names in logs."""
        return self._last

    def take(self, step: int) -> dict[str, float]:
        """Return the log entry of the steps since the last log: mean loss, newest norm and learning rate.

        Skipped steps do not count. If all steps were skipped, the entry repeats the previous values.
        """
        count, total = self._count, self._sum
        self._before, self._count_before = self._before + total, self._count_before + count
        self._sum, self._count, self.logged_step = 0.0, 0, step
        self.diluted += [step] if self._is_diluted else []
        self._is_diluted = False
        return {**self._last, "loss": total / count} if count else dict(self._last)

    def mean(self) -> float:
        """Return the run's mean loss over all steps, also those before a resume; 0 without a step."""
        return (self._before + self._sum) / max(self._count_before + self._count, 1)


# A loss above this multiple of the start loss, and above that of random guessing, means a ruined model.
_FAR = 2.0


class LossWatch:
    """A watch for faults in step results. It prints each kind's first fault, and counts all of them.

    vocab_size: the logarithm is the loss of random guessing, with all tokens equally likely.
    """

    def __init__(self, vocab_size: int, learning_rate: float) -> None:
        self._guessing, self._rate = math.log(max(vocab_size, 2)), learning_rate
        self._start: float | None = None
        self._last = 0.0
        self._num_steps = self._num_idle = self._num_bare = self._num_ruined = 0

    def begin(self, log_history: Iterable[Mapping[str, Any]]) -> None:
        """Take the first loss in a resumed run's log as the start loss."""
        logged = [entry["loss"] for entry in log_history if isinstance(entry.get("loss"), int | float)]
        self._start = next((float(loss) for loss in logged if loss > 0), None)

    def look_at(self, step: int, result: _C.StepResult, *, has_targets: bool) -> None:
        """Check a step's result; print a message about the first fault of each kind."""
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
        """Yield a text about each kind of fault, for the summary at the run's end."""
        if self._num_idle:
            yield f"{_IDLE} in {self._num_idle:,} of {self._num_steps:,} steps"
        if self.is_ruined:
            yield f"{self._ruin()}: the weights are of no use"
        if self._num_bare:
            yield f"{self._num_bare:,} of {self._num_steps:,} steps had no token to learn"

    @property
    def is_ruined(self) -> bool:
        """True if the newest loss is far above the start loss, and above the loss of random guessing."""
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
