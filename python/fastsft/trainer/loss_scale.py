"""The loss scale of float16, by the rule of torch.amp.GradScaler."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from fastsft.runtime.errors import NotFiniteError
from fastsft.runtime.messages import tell

if TYPE_CHECKING:
    from fastsft import _C
    from fastsft.arguments import TrainingArguments

_GROWTH, _BACKOFF = 2.0, 0.5
_MOST = 2.0**127  # of the powers of two of float32
_LEAST = 1e-4  # fairseq's --min-loss-scale: gradients that overflow below it do so at any scale


class LossScale:
    """The factor of a step's loss in backward; 1 without --fp16.

    The same on every rank. A step whose gradients overflow changes no weight. `schedule_lag`: such steps that
    do not advance the learning rate. With --optim adamw_torch_fused they do: torch's fused AdamW leaves them
    out itself, and accelerate does not see it.
    """

    def __init__(self, args: TrainingArguments) -> None:
        self.enabled = bool(args.fp16)
        self.value = float(args.initial_loss_scale) if self.enabled else 1.0
        self.schedule_lag = 0
        self._holds_schedule = args.optim != "adamw_torch_fused"
        self._window = int(args.loss_scale_window)
        self._good_steps = 0  # since the scale last changed

    def absorbs(self, step: int, result: _C.StepResult, limit: float) -> bool:
        """Take the result of `step` in; True if it is an overflow, which a smaller scale answers.

        NotFiniteError when the scale has become so small that something else is wrong.
        """
        if not self.enabled:
            return False
        if math.isfinite(result.loss) and result.loss > limit:  # a spike, left out for another reason
            return False
        if result.finite:
            self._grow()
            return False
        before, self.value = self.value, self.value * _BACKOFF
        self._good_steps = 0
        self.schedule_lag += self._holds_schedule
        if not math.isfinite(result.loss):  # no scale is small enough: BadSteps answers
            return False
        if self.value < _LEAST:
            raise NotFiniteError(
                step,
                f"gradients overflow float16 at a loss scale of {before:g}; use --bf16 True, or lower "
                "--learning_rate",
            )
        tell(
            f"step {step}: gradients overflowed float16, no weight changed; loss scale {before:g} to "
            f"{self.value:g}"
        )
        return True

    def _grow(self) -> None:
        self._good_steps += 1
        if self._good_steps < self._window:
            return
        self._good_steps = 0
        if self.value * _GROWTH <= _MOST:
            self.value *= _GROWTH

    def state(self) -> dict[str, object]:
        """For fastsft_state.json; empty without --fp16."""
        if not self.enabled:
            return {}
        return {
            "scale": self.value,
            "good_steps": self._good_steps,
            "schedule_lag": self.schedule_lag,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Restore what `state` wrote; a checkpoint of another number format leaves the first scale."""
        if not self.enabled or not state:
            return
        self.value, self.schedule_lag = float(state["scale"]), int(state["schedule_lag"])
        self._good_steps = int(state["good_steps"])
