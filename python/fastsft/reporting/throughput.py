"""Speed of a run and time of its end, from the times of its steps and of what is between them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_WARM_UP_STEPS = 2  # buffers are made, kernels are chosen, files are read for the first time
_WINDOW = 50


class Pace:
    """Times of steps, and of phases such as evaluation and saving, which do not count as steps.

    clock: seconds; for tests. Step times are averaged over the newest 50, without the first two.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.restart()

    def restart(self, first_step: int = 0) -> None:
        """A run begins at `first_step`."""
        self.started = self._mark = self._clock()
        self._ended: float | None = None
        self.first_step = self.step = first_step
        self.tokens = 0
        self._steps: deque[tuple[float, int]] = deque(maxlen=_WINDOW)
        self._warm_up: list[tuple[float, int]] = []
        self._phases: dict[str, list[float]] = {}

    def step_done(self, step: int, tokens: int) -> None:
        """Step number `step` has ended; `tokens` of all ranks, without padding."""
        now = self._clock()
        taken = (now - self._mark, tokens)
        self._mark, self.step, self.tokens = now, step, self.tokens + tokens
        if len(self._warm_up) < _WARM_UP_STEPS:
            self._warm_up.append(taken)
        else:
            self._steps.append(taken)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time that belongs to no step."""
        began = self._clock()
        try:
            yield
        finally:
            passed = self._clock() - began
            self._phases.setdefault(name, []).append(passed)
            self._mark += passed

    def stop(self) -> None:
        """The run has ended: `seconds` stay what they are from the first call on."""
        if self._ended is None:
            self._ended = self._clock()

    @property
    def seconds(self) -> float:
        """Since the run began, until it ended."""
        return (self._clock() if self._ended is None else self._ended) - self.started

    def seconds_per_step(self) -> float | None:
        """None before the first step."""
        known = self._steps or self._warm_up
        return sum(taken for taken, _ in known) / len(known) if known else None

    def tokens_per_second(self) -> float:
        """Of all ranks while they step; 0 before the first step."""
        known = self._steps or self._warm_up
        return sum(tokens for _, tokens in known) / max(sum(taken for taken, _ in known), 1e-9)

    def overall_tokens_per_second(self) -> float:
        """Tokens since the run began by all the time since then, evaluation and saving too."""
        return self.tokens / max(self.seconds, 1e-9)

    def phase_seconds(self, name: str) -> float | None:
        """Mean length of a phase; None before the first."""
        times = self._phases.get(name)
        return sum(times) / len(times) if times else None

    def seconds_left(self, max_steps: int, phases_left: dict[str, int]) -> float | None:
        """Until `max_steps` are done, and `phases_left` (name -> how many) with them; None before a step.

        A phase that has not been seen yet counts nothing.
        """
        per_step = self.seconds_per_step()
        if per_step is None:
            return None
        phases = sum(count * (self.phase_seconds(name) or 0.0) for name, count in phases_left.items())
        return per_step * max(max_steps - self.step, 0) + phases
