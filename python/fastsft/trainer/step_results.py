"""Losses of steps that are still under way: a GPU hands them out one step late."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from fastsft.trainer.bad_steps import BadSteps
from fastsft.trainer.loss_meter import LossMeter
from fastsft.trainer.loss_scale import LossScale
from fastsft.trainer.loss_watch import LossWatch

if TYPE_CHECKING:
    from fastsft import _C


class _Begun(NamedTuple):
    step: int
    rate: float
    loss_limit: float
    has_targets: bool


class LateResults:
    """The steps begun since `clear`, and their losses on the way into a LossMeter."""

    def __init__(self) -> None:
        self._under_way: deque[_Begun] = deque()

    def clear(self) -> None:
        """Forget steps of an earlier run."""
        self._under_way.clear()

    def begun(self, step: int, rate: float, loss_limit: float, *, has_targets: bool = True) -> None:
        """`step` is under way with learning rate `rate`; above `loss_limit` it changes nothing."""
        self._under_way.append(_Begun(step, rate, loss_limit, has_targets))

    def take(
        self,
        engine: _C.Engine,
        losses: LossMeter,
        bad_steps: BadSteps,
        loss_scale: LossScale,
        watch: LossWatch,
        *,
        clipped: bool,
        all: bool,
    ) -> None:
        """Add to `losses` what the engine hands out; with `all`, wait for every step begun.

        `clipped`: log gradient norms. A step whose gradients overflowed counts, as in transformers. Raises
        what `bad_steps` answers to a bad step; `watch` says a line about numbers that mean a ruined run.
        """
        for result in engine.take_results(all=all):
            step, rate, limit, has_targets = self._under_way.popleft()
            if loss_scale.absorbs(step, result, limit) or bad_steps.judge(step, result, limit):
                norm = result.grad_norm if clipped else None
                losses.add(result.loss, norm, rate, has_targets=has_targets)
                watch.look_at(step, result, has_targets=has_targets)
