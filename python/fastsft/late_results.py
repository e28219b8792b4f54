"""Losses of steps that are still under way: a GPU hands them out one step late."""

from __future__ import annotations

import math
from collections import deque
from typing import Any, NamedTuple

from fastsft.loss_meter import LossMeter


class _Begun(NamedTuple):
    step: int
    rate: float


class NotFiniteError(RuntimeError):
    """Loss or gradient of `step` is NaN or infinite; the step changed no weight."""

    def __init__(self, step: int, loss: float, grad_norm: float) -> None:
        super().__init__(
            f"step {step}: loss {loss}, gradient norm {grad_norm}: not finite; it changed no weight; lower "
            "--learning_rate or --max_grad_norm, then start the same command again: it resumes from the "
            "newest checkpoint"
        )
        self.step = step


class LateResults:
    """The steps begun since `clear`, and their losses on the way into a LossMeter."""

    def __init__(self) -> None:
        self._under_way: deque[_Begun] = deque()

    def clear(self) -> None:
        """Forget steps of an earlier run."""
        self._under_way.clear()

    def begun(self, step: int, rate: float) -> None:
        """Step number `step` is under way with learning rate `rate`."""
        self._under_way.append(_Begun(step, rate))

    def take(self, engine: Any, losses: LossMeter, *, clipped: bool, all: bool) -> None:
        """Add to `losses` what the engine hands out; with `all`, wait for every step begun.

        `clipped`: log gradient norms. NotFiniteError for a bad step.
        """
        for result in engine.take_results(all=all):
            step, rate = self._under_way.popleft()
            if not (result.finite and math.isfinite(result.loss)):
                raise NotFiniteError(step, result.loss, result.grad_norm)
            losses.add(result.loss, result.grad_norm if clipped else None, rate)
