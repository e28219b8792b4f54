"""Measures a run's speed: times of its steps and phases, the time left, and MFU."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastsft.planning.gpus import gpu_of

if TYPE_CHECKING:
    from fastsft.arguments import TrainingArguments
    from fastsft.data.token_rows import TokenRows
    from fastsft.model.causal_lm import CausalLM

# these steps are not measured: they allocate buffers, choose kernels and read files for the first time
_WARM_UP_STEPS = 2
_WINDOW = 50


class Pace:
    """Measures the times of steps, and of phases such as evaluation and saves between steps.

    The speed is the mean over the newest 50 steps, without the first two steps. clock: function that returns
    seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.restart()

    def restart(self, first_step: int = 0) -> None:
        """Begin to measure a run that starts at `first_step`."""
        self.started = self._mark = self._clock()
        self._ended: float | None = None
        self.first_step = self.step = first_step
        self.tokens = 0
        self._steps: deque[tuple[float, int]] = deque(maxlen=_WINDOW)
        self._warm_up: list[tuple[float, int]] = []
        self._phases: dict[str, list[float]] = {}

    def step_done(self, step: int, tokens: int) -> None:
        """Record the end of step number `step`. tokens: its tokens over all ranks, without padding."""
        now = self._clock()
        timed = (now - self._mark, tokens)
        self._mark, self.step, self.tokens = now, step, self.tokens + tokens
        if len(self._warm_up) < _WARM_UP_STEPS:
            self._warm_up.append(timed)
        else:
            self._steps.append(timed)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Record the time inside the context as a phase `name`."""
        began = self._clock()
        try:
            yield
        finally:
            passed = self._clock() - began
            self._phases.setdefault(name, []).append(passed)
            self._mark += passed

    def stop(self) -> None:
        """Stop the clock: `seconds` is constant after the first call."""
        if self._ended is None:
            self._ended = self._clock()

    @property
    def seconds(self) -> float:
        """Seconds since the run began; constant after the run's end."""
        return (self._clock() if self._ended is None else self._ended) - self.started

    def seconds_per_step(self) -> float | None:
        """Return the mean time of a step in seconds; None before the first step."""
        steps = self._steps or self._warm_up
        return sum(seconds for seconds, _ in steps) / len(steps) if steps else None

    def tokens_per_second(self) -> float:
        """Return tokens per second of step time, over all ranks; 0 before the first step."""
        steps = self._steps or self._warm_up
        return sum(tokens for _, tokens in steps) / max(sum(seconds for seconds, _ in steps), 1e-9)

    def overall_tokens_per_second(self) -> float:
        """Return tokens per second since the run began; the time includes evaluations and saves."""
        return self.tokens / max(self.seconds, 1e-9)

    def phase_seconds(self, name: str) -> float | None:
        """Return the mean time of phases called `name` in seconds; None before the first."""
        times = self._phases.get(name)
        return sum(times) / len(times) if times else None

    def seconds_left(self, max_steps: int, phases_left: dict[str, int]) -> float | None:
        """Return the predicted seconds until the run ends; None before the first step.

        phases_left: how many phases are still to come, by name. A phase that has not occurred yet counts as 0
        s.
        """
        per_step = self.seconds_per_step()
        if per_step is None:
            return None
        phases = sum(count * (self.phase_seconds(name) or 0.0) for name, count in phases_left.items())
        return per_step * max(max_steps - self.step, 0) + phases


@dataclass(frozen=True)
class Work:
    """The FLOPs of training on a token, and the peak FLOP/s of all devices together."""

    flops_per_token: float
    peak_flops: float

    def utilization(self, tokens_per_second: float) -> float:
        """Return MFU, the share of the peak FLOP/s that is used."""
        return tokens_per_second * self.flops_per_token / self.peak_flops


def flops_per_token(cost: tuple[float, ...], num_tokens: float, num_pairs: float) -> float:
    """Return the mean FLOPs per token of a data set with `num_tokens` tokens.

    num_pairs: the sum of the conversations' squared lengths. cost: from _C.conversation_cost. The quadratic
    cost includes the work that attention's backward pass repeats. By convention, MFU leaves repeated work
    out, so only 6/7 of the quadratic cost is counted.
    """
    linear, quadratic = cost[:2]
    return linear + 6 / 7 * quadratic * num_pairs / max(num_tokens, 1)


def work_of(args: TrainingArguments, model: CausalLM, rows: TokenRows) -> Work | None:
    """Return the work of a run on `rows`, from which MFU is computed.

    None on a CPU, in float32, on a GPU whose peak is unknown, or if rows are only known once they are read.
    """
    if args.device.type == "cpu" or not (args.bf16 or args.fp16) or not rows.is_exact:
        return None
    gpu = gpu_of(args.device)
    if gpu is None:
        return None
    lengths = rows.lengths.astype(float)
    cost = model.conversation_cost()
    per_token = flops_per_token(cost, float(lengths.sum()), float((lengths**2).sum()))
    return Work(per_token, gpu.flops * args.world_size)
