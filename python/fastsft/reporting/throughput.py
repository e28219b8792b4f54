"""Speed of a run and time of its end, from the times of its steps and of what is between them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from fastsft.planning.gpus import gpu_of

if TYPE_CHECKING:
    from fastsft.arguments import TrainingArguments
    from fastsft.data.token_rows import TokenRows
    from fastsft.reporting.reported_model import ReportedModel

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


@dataclass(frozen=True)
class Work:
    """Cost of training on a token, and peak throughput of all devices together."""

    flops_per_token: float
    peak_flops: float

    def utilization(self, tokens_per_second: float) -> float:
        """MFU: the share of the peak."""
        return tokens_per_second * self.flops_per_token / self.peak_flops


def flops_per_token(cost: tuple[float, ...], num_tokens: float, num_pairs: float) -> float:
    """Mean over a data set of `num_tokens` tokens whose squared lengths sum to `num_pairs`.

    cost: _C.conversation_cost, whose quadratic part counts what attention's backward pass computes again; the
    usual counting has six sevenths of it.
    """
    linear, quadratic = cost[:2]
    return linear + 6 / 7 * quadratic * num_pairs / max(num_tokens, 1)


class HasRows(Protocol):
    """A trainer with data."""

    @property
    def args(self) -> TrainingArguments:
        """Of the run."""

    @property
    def model(self) -> ReportedModel:
        """For the cost of a token."""

    @property
    def train_rows(self) -> TokenRows:
        """The data."""


def work_of(trainer: HasRows) -> Work | None:
    """The work of a trainer with data; None on a CPU, in float32, or on a GPU whose peak is not known."""
    args, rows = trainer.args, trainer.train_rows
    if args.device.type == "cpu" or not (args.bf16 or args.fp16) or not rows.is_exact:
        return None
    gpu = gpu_of(args.device)
    if gpu is None:
        return None
    lengths = rows.lengths.astype(float)
    cost = trainer.model.conversation_cost()
    per_token = flops_per_token(cost, float(lengths.sum()), float((lengths**2).sum()))
    return Work(per_token, gpu.flops * args.world_size)
