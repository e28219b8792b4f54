"""Record of the saves of each step in a monitor, for as long as that can matter."""

from __future__ import annotations

from dataclasses import dataclass, field

KEPT_FAILURES = 1000


@dataclass
class StepSaves:
    """Of one step. pending: saves registered and not ended, below zero while their registration is awaited;
    announced: the step has no further saves to register. True means weights, False for a full
    checkpoint."""

    pending: dict[bool, int] = field(default_factory=lambda: {True: 0, False: 0})
    announced: set[bool] = field(default_factory=set)
    weights_finished: bool = False
    failure: str | None = None

    @property
    def even(self) -> bool:
        """True if every save that was registered has ended, and the reverse."""
        return not self.pending[True] and not self.pending[False]


class Saves:
    """Of all steps that may still be published, or that wait for a report; of failures the newest 1000.

    A step is forgotten when it is announced, its counts are even, and a newer one is published: what is
    reported of it then belongs to another save of the step, which is registered and announced again.
    """

    def __init__(self) -> None:
        self._steps: dict[int, StepSaves] = {}

    def __len__(self) -> int:
        return len(self._steps)

    def of(self, step: int) -> StepSaves:
        """The record of the step, to be changed."""
        return self._steps.setdefault(step, StepSaves())

    def failures(self) -> dict[int, str]:
        """step -> why its last save failed."""
        return {step: saves.failure for step, saves in self._steps.items() if saves.failure is not None}

    def forget_past(self, checkpoint: int, weights: int) -> None:
        """Given the newest steps that are published."""
        over = [(step, saves) for step, saves in self._steps.items() if saves.announced and saves.even]
        failed = sorted(step for step, saves in over if saves.failure is not None)
        gone = failed[: max(0, len(failed) - KEPT_FAILURES)]
        for step, saves in over:
            newest = checkpoint if False in saves.announced else weights
            if saves.failure is None and step < weights and step <= newest:
                gone.append(step)
        for step in gone:
            del self._steps[step]
