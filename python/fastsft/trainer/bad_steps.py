"""Reaction of a run to a step whose numbers cannot be trusted (docs/signals.md, "Bad numbers (NaN, inf)")."""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, Any

from fastsft.runtime.errors import NotFiniteError
from fastsft.runtime.messages import tell

if TYPE_CHECKING:
    from fastsft import _C
    from fastsft.arguments import TrainingArguments

_WINDOW = 32  # losses that a spike is measured against
_LEAST = 8  # before so many there is nothing to measure by


class RollBackError(Exception):
    """Go back to the last checkpoint before `steps[0]`, and leave the groups of `steps` out."""

    def __init__(self, steps: list[int], reason: str) -> None:
        super().__init__(reason)
        self.steps, self.reason = steps, reason


class BadSteps:
    """Judges steps by their loss and gradient norm; the same on every rank, since both are.

    A step that is not finite, or whose loss exceeds `loss_limit()`, has changed no weight when its result
    comes. `left_out`: numbers of steps whose groups are not computed, after a roll-back.
    """

    def __init__(self, args: TrainingArguments) -> None:
        self._args = args
        self.left_out: set[int] = set()
        self._count = 0
        self._recent: deque[float] = deque(maxlen=_WINDOW)
        self._spikes: list[int] = []

    def loss_limit(self) -> float:
        """A step with a greater loss is a spike; infinite when nobody asked, and at the beginning."""
        if not self._args.loss_spike_factor or len(self._recent) < _LEAST:
            return math.inf
        return float(self._args.loss_spike_factor * math.fsum(self._recent) / len(self._recent))

    def judge(self, step: int, result: _C.StepResult, limit: float) -> bool:
        """True if `step`, begun under `limit`, counts; a line for one that is left out.

        NotFiniteError or RollBackError by --on_nonfinite.
        """
        if result.finite and math.isfinite(result.loss):
            self._recent.append(result.loss)
            self._spikes.clear()
            return True
        if math.isfinite(result.loss) and result.loss > limit:
            self._spikes.append(step)
            factor = self._args.loss_spike_factor
            reason = f"loss {result.loss:.6g} is above {limit:.6g}, {factor:g} times the mean"
            self._answer(step, reason, answered=len(self._spikes) >= self._args.loss_spike_patience)
        else:
            reason = f"loss {result.loss}, gradient norm {result.grad_norm}: not finite"
            self._answer(step, reason, answered=True)
        return False

    def _answer(self, step: int, reason: str, *, answered: bool) -> None:
        policy = self._args.on_nonfinite if answered else "skip"
        narrow = "use --bf16 True, as float16 holds no number above 65,504, " if self._args.fp16 else ""
        advice = f"{narrow}lower --learning_rate or --max_grad_norm, or let --on_nonfinite skip such steps"
        if policy == "stop":
            raise NotFiniteError(step, f"{reason}; it changed no weight; {advice}{_RESUMES}")
        if self._count >= self._args.max_nonfinite_skips:
            raise NotFiniteError(
                step, f"{reason}; {self._count} groups are left out already (--max_nonfinite_skips){_RESUMES}"
            )
        if policy == "rollback":
            raise RollBackError(self._spikes or [step], reason)
        self._count += 1
        tell(f"step {step}: {reason}; left out, it changed no weight ({self._count} so far)")

    def rolled_back(self, steps: list[int]) -> None:
        """The run is before `steps` again, whose groups are not computed this time."""
        self.left_out.update(steps)
        self._count += len(steps)
        self._spikes.clear()

    def state(self) -> dict[str, object]:
        """For fastsft_state.json: a resumed run judges as this one would."""
        return {
            "left_out": sorted(self.left_out),
            "count": self._count,
            "recent_losses": list(self._recent),
            "spikes": list(self._spikes),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Restore what `state` wrote; groups that are left out already stay out."""
        self.left_out |= set(state.get("left_out", []))
        self._count = max(self._count, state.get("count", 0))
        self._recent = deque(state.get("recent_losses", []), maxlen=_WINDOW)
        self._spikes = list(state.get("spikes", []))


_RESUMES = "; the same command resumes from the newest checkpoint, if one was written"
