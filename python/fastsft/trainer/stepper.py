"""An optimizer step: its learning rate and noise, the engine's call, and the results.

On a GPU the results are read one step later.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from fastsft.runtime.errors import NotFiniteError
from fastsft.runtime.timeouts import deadline
from fastsft.trainer.bad_steps import BadSteps, LossScale, check_replay, check_replicas
from fastsft.trainer.losses import LossMeter, LossWatch
from fastsft.trainer.profile import Profile
from fastsft.trainer.row_notices import RowNotices, finds_packed, tell_differences
from fastsft.trainer.schedule import PlateauSchedule, Schedule, schedule_of

if TYPE_CHECKING:
    from fastsft import _C
    from fastsft.arguments import TrainingArguments
    from fastsft.callbacks.state import TrainerState
    from fastsft.trainer.batches import StepBatch
    from fastsft.trainer.checkpoints import PendingWork
    from fastsft.trainer.events import Events
    from fastsft.trainer.planner import Planner
    from fastsft.trainer.setup import Setup


class _InFlightStep(NamedTuple):
    step: int
    learning_rate: float
    loss_limit: float
    has_targets: bool


class Stepper:
    """The part of a run that computes optimizer steps, and tracks losses, loss scale and bad steps.

    schedule: the learning-rate schedule; None before `prepare`. plateau_metrics: the metrics that a plateau
    schedule has received so far; None for other schedules.
    """

    args: TrainingArguments  # Setup.step_args, set by `prepare`

    def __init__(
        self, setup: Setup, planner: Planner, state: TrainerState, events: Events, pending: PendingWork
    ) -> None:
        self._setup, self._planner, self._state, self._events = setup, planner, state, events
        self._pending = pending
        args = setup.args
        self.losses, self.loss_watch = LossMeter(), LossWatch(setup.engine.vocab_size, args.learning_rate)
        self.bad_steps, self.loss_scale = BadSteps(args), LossScale(args)
        self.schedule: Schedule | None = None
        self.plateau_metrics: list[float] | None = None
        self._profile = Profile(args.profile, args.profile_steps)
        self._notices = RowNotices(args)
        self._in_flight: deque[_InFlightStep] = deque()
        self._first_step = 1
        self._find_packed = False

    def prepare(self) -> None:
        """Make the learning-rate schedule for a new or resumed state."""
        self.args, self._first_step = self._setup.step_args, self._state.global_step + 1
        self._make_schedule()

    def _make_schedule(self) -> None:
        self.schedule = schedule = schedule_of(
            self.args, self._planner.plan.max_steps, self._state.log_history, self.plateau_metrics
        )
        self.plateau_metrics = schedule.taken if isinstance(schedule, PlateauSchedule) else None

    def begin(self) -> None:
        """Print notices, before the first step, about settings for which transformers has other losses."""
        self._find_packed = finds_packed(self._setup.model, self._setup.args, training=True)
        self._notices.find_packed = self._find_packed
        tell_differences(self.args)
        if self._planner.rows.native is not None:
            self._notices.look_at(self._planner.rows.native)

    def phase(self) -> str:
        """Return the name of the next step's deadline: the first step of a process may take longer."""
        return self._phase_of(self._state.global_step + 1)

    def _phase_of(self, step: int) -> str:
        return "first_step" if step == self._first_step else "step"

    def next_rate(self) -> float:
        """Return the learning rate of the next step."""
        assert self.schedule is not None  # made by `prepare`
        return float(self.schedule.rate(self._state.global_step - self.loss_scale.schedule_lag))

    def step(self, batch: StepBatch) -> None:
        """Compute one optimizer step. Collective.

        A step that is skipped after a roll-back is counted, but not computed.
        """
        state, events, engine = self._state, self._events, self._setup.engine
        number, rows, is_left_out = state.global_step + 1, batch.rows, False
        self._profile.before_step(engine, number)
        if self._planner.rows.native is None:
            self._notices.look_at(rows.native)
        if number in self.bad_steps.left_out:
            state.global_step, is_left_out = number, True
        else:
            for _ in range(batch.num_micro_batches - 1):
                events.fire("on_substep_end")
            events.fire("on_pre_optimizer_step")
            with deadline(self._setup.args, self.phase()):
                limit, rate = self.bad_steps.loss_limit(), self.next_rate()
                engine.begin_step(
                    rows.native, rows.plan.micro_batches, rows.plan.weights, learning_rate=rate,
                    loss_limit=limit, **self._options(number, rows.padded_length),
                )  # fmt: skip
                self._in_flight.append(_InFlightStep(number, rate, limit, rows.plan.num_targets > 0))
                self._after_begin(number, rows.padded_tokens)
            state.num_input_tokens_seen += rows.input_tokens
        state.epoch = batch.epoch_after
        self._pending.step_done()
        self._profile.after_step(engine, number)
        tokens = 0 if is_left_out else int(rows.plan.num_tokens)
        logs = {"epoch": state.epoch, **self.losses.last()}
        events.fire("on_step_end", step_tokens=tokens, step_logs=logs)

    def _after_begin(self, number: int, padded_tokens: int) -> None:
        """Count step `number`, and collect results. With --replay_check, compare gradients and replicas."""
        state, engine, checked = self._state, self._setup.engine, self._is_checked(number)
        if checked:
            check_replay(engine, number)
        self._events.fire("on_optimizer_step")
        state.global_step = number
        state.total_flos += 6.0 * padded_tokens * engine.num_non_embedding_parameters
        self.collect(all=checked or self.loss_scale.enabled)  # the next loss scale depends on this result
        if checked:
            check_replicas(engine, number)

    def _is_checked(self, number: int) -> bool:
        every = self._setup.args.replay_check
        return bool(every) and number % every == 0

    def _options(self, number: int, padded_length: int) -> dict[str, Any]:
        """Return the options of Engine.begin_step for step `number`, except learning_rate and loss_limit."""
        args = self.args
        return {
            "beta1": args.adam_beta1,
            "beta2": args.adam_beta2,
            "eps": args.adam_epsilon,
            "weight_decay": args.weight_decay,
            "max_grad_norm": self._setup.args.max_grad_norm or 0.0,  # may change between steps
            "label_smoothing": args.label_smoothing_factor,
            "rounding_seed": args.seed,
            "find_packed": self._find_packed,
            "replay": self._is_checked(number),
            "loss_scale": self.loss_scale.value,
            "dropout_seed": step_seed(args, number),
            **self._noise(number, padded_length),
        }

    def _noise(self, number: int, padded_length: int) -> dict[str, Any]:
        if not self.args.neftune_noise_alpha:
            return {}  # a configuration without hidden_size trains without noise
        return noise_options(self.args, padded_length, self._setup.model.config.hidden_size, number)

    def collect(self, *, all: bool) -> None:
        """Add the results of finished steps to the losses. With `all`, wait for the steps in flight.

        As in transformers, the loss of a step counts even if its gradients overflowed float16. NotFiniteError
        or RollBackError for a bad step.
        """
        clipped = bool(self._setup.args.max_grad_norm)
        try:
            for result in self._take_results(all=all):
                step, rate, limit, has_targets = self._in_flight.popleft()
                if self.loss_scale.absorbs(step, result, limit) or self.bad_steps.judge(step, result, limit):
                    norm = result.grad_norm if clipped else None
                    self.losses.add(result.loss, norm, rate, has_targets=has_targets)
                    self.loss_watch.look_at(step, result, has_targets=has_targets)
        except NotFiniteError as error:
            self._state.global_step = error.step - 1
            raise

    def discard_results(self) -> None:
        """Wait for the steps in flight and drop their results, before a roll-back."""
        self._take_results(all=True)
        self._in_flight.clear()

    def _take_results(self, *, all: bool) -> list[_C.StepResult]:
        """Return the results of finished steps. On a GPU the host waits here for other ranks."""
        oldest = self._in_flight[0].step if self._in_flight else self._state.global_step + 1
        with deadline(self._setup.args, self._phase_of(oldest)):
            return self._setup.engine.take_results(all=all)

    def rolled_back(self, steps: list[int]) -> None:
        """Skip `steps` from now on. Called after the checkpoint of an earlier step was loaded."""
        self.bad_steps.rolled_back(steps)
        self._make_schedule()

    def restore(self, saved: dict[str, Any], step: int) -> None:
        """Restore losses, bad steps, loss scale and plateau metrics from a checkpoint of `step`."""
        self.losses.restore(saved.get("losses"), step)
        self.plateau_metrics = (saved.get("plateau") or {}).get("taken")
        self.bad_steps.restore(saved.get("bad_steps", {}))
        self.loss_scale.restore(saved.get("loss_scale", {}))

    def loop_state(self) -> dict[str, object]:
        """Return the state for `restore`, in the form of fastsft_state.json."""
        taken = self.plateau_metrics
        return {
            "bad_steps": self.bad_steps.state(),
            "loss_scale": self.loss_scale.state(),
            "losses": self.losses.to_json(),
            **({} if taken is None else {"plateau": {"taken": [*taken]}}),
        }

    def finish(self) -> None:
        """Write the profile if --profile was given and the file is not written yet."""
        self._profile.finish(self._setup.engine)


def noise_options(args: TrainingArguments, padded_length: int, hidden_size: int, step: int) -> dict[str, Any]:
    """Return the options `noise` and `noise_seed` of Engine.begin_step; {} without neftune_noise_alpha.

    The noise is uniform in +-alpha / sqrt(padded_length * hidden_size), with padded_length in tokens
    (docs/spec/trainer_arguments.md, section 2). The seed depends on the run's seed, the step and the rank, so
    that a resumed run draws the same noise.
    """
    if not args.neftune_noise_alpha:
        return {}
    return {
        "noise": args.neftune_noise_alpha / math.sqrt(padded_length * hidden_size),
        "noise_seed": step_seed(args, step) * 2**12 + args.process_index % 2**12,
    }


def step_seed(args: TrainingArguments, step: int) -> int:
    """Return the dropout seed of optimizer step `step`: the same on every rank and after a resume."""
    return int((args.seed % 2**24) * 2**24 + step % 2**24)
