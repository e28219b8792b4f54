"""Learning-rate schedules: the engine's, DeepSpeed's, and the plateau schedule.

Rules: docs/spec/trainer_semantics.md, section 12.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable
from typing import Any, Protocol

from fastsft.arguments import TrainingArguments
from fastsft.arguments.engine_flags import DeepSpeedPlan
from fastsft.arguments.resolve.deepspeed import check_lengths


class Schedule(Protocol):
    """A map from each step of a run to a learning rate."""

    def rate(self, step: int) -> float:
        """Return the learning rate of step `step`, counted from 0."""


def schedule_of(
    args: TrainingArguments,
    max_steps: int,
    history: Iterable[dict[str, Any]] = (),
    taken: Iterable[float] | None = None,
) -> Schedule:
    """Return the schedule for a run of `max_steps` steps. ValueError for options that the schedule lacks.

    taken: metrics that a plateau schedule received before a resume. If a checkpoint does not have them
    (None), they are read from the log `history`, which may also contain evaluations that callbacks made.
    """
    warmup = args.get_warmup_steps(max_steps)
    plan = args.deepspeed_plan
    if plan is not None:
        check_lengths(plan, max_steps, warmup)
        if plan.scheduler is not None:
            return DeepSpeedWarmup(plan, args.learning_rate, max_steps, warmup)
    schedule = _named_schedule(args, max_steps, warmup)
    if isinstance(schedule, PlateauSchedule):
        if taken is None:
            taken = _metrics_of(history, metric_key(args.metric_for_best_model or "loss"))
        for metric in list(taken):
            schedule.take(metric)
    return schedule


def check_schedule(args: TrainingArguments) -> None:
    """Raise ValueError, with the flag's name, for options that `schedule_of` rejects in any run."""
    plan = args.deepspeed_plan
    if plan is not None and plan.scheduler is not None:
        return
    try:
        _named_schedule(args, max_steps=1, warmup=0)
    except ValueError as error:
        about = str(error).removeprefix("--").removeprefix("lr_scheduler_kwargs: ")
        form = "" if args.lr_scheduler_kwargs else "; give --lr_scheduler_kwargs '{\"NAME\": VALUE}'"
        raise ValueError(
            f"--lr_scheduler_kwargs of --lr_scheduler_type {args.lr_scheduler_type}: {about}{form}"
        ) from None


def _named_schedule(args: TrainingArguments, max_steps: int, warmup: int) -> Schedule:
    from fastsft import _C

    given = args.lr_scheduler_kwargs if isinstance(args.lr_scheduler_kwargs, dict) else {}
    options = {name: value for name, value in given.items() if value is not None}
    for name, value in options.items():
        if not isinstance(value, int | float | str):
            raise ValueError(f"--lr_scheduler_kwargs: {name}: expected a number or a word, got {value!r}")
    if args.lr_scheduler_type == "reduce_lr_on_plateau":
        return _plateau(args.learning_rate, options)
    return _C.Schedule(
        args.lr_scheduler_type,
        learning_rate=args.learning_rate,
        warmup_steps=warmup,
        total_steps=max_steps,
        options=options,
    )


def metric_key(name: str) -> str:
    """Return a metric's name in evaluation logs, such as eval_loss for loss."""
    return name if name.startswith("eval_") else f"eval_{name}"


class DeepSpeedWarmup:
    """DeepSpeed's schedules WarmupLR and WarmupDecayLR, with DeepSpeed's rate at every step.

    Steps 0 and 1 both have the rate `warmup_min_lr`: DeepSpeed counts from -1, for which it returns the
    minimum, and begins the warm-up at 0. `warmup_type` is "log" unless the configuration says "linear".
    """

    def __init__(self, plan: DeepSpeedPlan, learning_rate: float, max_steps: int, warmup: int) -> None:
        assert plan.scheduler is not None
        params = plan.scheduler["params"]
        least = params.get("warmup_min_lr", 0.0)
        self._least = 0.0 if least == "auto" else float(least)
        self._peak = learning_rate
        given = params.get("warmup_num_steps", 1000)
        self._warmup = max(2, warmup if given == "auto" else int(given))
        self._total = max_steps if plan.scheduler["type"] == "WarmupDecayLR" else None
        self._log = params.get("warmup_type", "log") == "log"

    def rate(self, step: int) -> float:
        """Return the learning rate of step `step`."""
        return self._least + (self._peak - self._least) * (self._share(step - 1) if step else 0.0)

    def _share(self, done: int) -> float:
        if done < self._warmup:
            return math.log(done + 1) / math.log(self._warmup) if self._log else done / self._warmup
        if self._total is None:
            return 1.0
        return max(0.0, (self._total - done) / max(1.0, self._total - self._warmup))


def _plateau(learning_rate: float, options: dict[str, Any]) -> PlateauSchedule:
    known = [name for name in inspect.signature(PlateauSchedule).parameters if name != "learning_rate"]
    for name, value in options.items():
        if name not in known:
            raise ValueError(
                f'--lr_scheduler_kwargs: the schedule reduce_lr_on_plateau has no option "{name}"; it takes '
                f"{', '.join(known)}"
            )
        if not name.endswith("mode") and not isinstance(value, int | float):
            raise ValueError(f"--lr_scheduler_kwargs: expected a number for {name}, got {value!r}")
    return PlateauSchedule(learning_rate, **options)


def _metrics_of(history: Iterable[dict[str, Any]], metric: str) -> list[float]:
    """Return the finite values of `metric` in a log history, except for evaluations before the first step."""
    found = [float(entry[metric]) for entry in history if metric in entry and entry.get("step", 0) > 0]
    return [value for value in found if math.isfinite(value)]


class PlateauSchedule:
    """torch's ReduceLROnPlateau, with the same options and defaults.

    The rate is multiplied by `factor` after more than `patience` evaluations in a row without a better metric
    (docs/spec/trainer_semantics.md, section 12).
    """

    def __init__(
        self,
        learning_rate: float,
        *,
        mode: str = "min",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: str = "rel",
        cooldown: int = 0,
        min_lr: float = 0.0,
        eps: float = 1e-8,
    ) -> None:
        if mode not in ("min", "max") or threshold_mode not in ("rel", "abs"):
            raise ValueError(
                "--lr_scheduler_kwargs: reduce_lr_on_plateau: mode is min or max, threshold_mode rel or abs, "
                f"not {mode} and {threshold_mode}"
            )
        if factor >= 1.0:
            raise ValueError(f"--lr_scheduler_kwargs: factor: expected a number below 1, got {factor}")
        self._rate, self._mode = learning_rate, mode
        self._factor, self._patience, self._cooldown = factor, patience, cooldown
        self._threshold, self._relative = threshold, threshold_mode == "rel"
        self._min, self._eps = min_lr, eps
        self._best = math.inf if mode == "min" else -math.inf
        self._bad = self._resting = 0
        self.taken: list[float] = []  # all metrics so far; checkpoints store them to restore the schedule

    def rate(self, step: int) -> float:
        """Return the current learning rate, which changes only at evaluations."""
        return self._rate

    def take(self, metric: float) -> None:
        """Adjust the learning rate after an evaluation with this metric."""
        self.taken.append(float(metric))
        if self._is_better(metric):
            self._best, self._bad = metric, 0
        else:
            self._bad += 1
        if self._resting > 0:
            self._resting -= 1
            self._bad = 0
        if self._bad > self._patience:
            lower = max(self._rate * self._factor, self._min)
            if self._rate - lower > self._eps:
                self._rate = lower
            self._resting, self._bad = self._cooldown, 0

    def _is_better(self, metric: float) -> bool:
        change = -self._threshold if self._mode == "min" else self._threshold
        bound = self._best * (1 + change) if self._relative else self._best + change
        return metric < bound if self._mode == "min" else metric > bound
