"""The loop over epochs and steps, and what is due after each (docs/spec/trainer_semantics.md, section 15)."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any, NoReturn

from fastsft import _C
from fastsft.callbacks.state import TrainerState
from fastsft.planning.run_plan import EpochGroups
from fastsft.runtime.errors import Interrupted, NotFiniteError
from fastsft.runtime.interactive import is_interactive
from fastsft.runtime.launch import launch
from fastsft.runtime.messages import tell
from fastsft.runtime.timeouts import deadline
from fastsft.trainer.agreed_control import AgreedControl, RunGuard
from fastsft.trainer.bad_steps import RollBackError
from fastsft.trainer.bit_checks import check_replay, check_replicas
from fastsft.trainer.deciding_metrics import deciding_metrics
from fastsft.trainer.evaluation_notices import decides
from fastsft.trainer.loss_meter import LossMeter
from fastsft.trainer.neftune import dropout_seed, noise_options
from fastsft.trainer.pending_work import Due
from fastsft.trainer.profile import Profile
from fastsft.trainer.resume import roll_back
from fastsft.trainer.row_notices import RowNotices, finds_packed, tell_differences
from fastsft.trainer.run_rows import RunRows
from fastsft.trainer.schedule import PlateauSchedule, Schedule, metric_key, schedule_of
from fastsft.trainer.signals import EXIT_BASE
from fastsft.trainer.step_results import LateResults
from fastsft.trainer.step_rows import StepRows

if TYPE_CHECKING:
    from fastsft.trainer.running import Running


class TrainingLoop:
    """Runs the steps of `trainer` from the step of its state. guard: notes signals while it runs."""

    def __init__(self, trainer: Running, guard: RunGuard) -> None:
        self.trainer, self.guard = trainer, guard
        self.agreed = AgreedControl(trainer, guard)
        self.args, self.plan = trainer.args, trainer.plan
        self.fixed = trainer.fixed_arguments.over(trainer.args)
        self.results = LateResults()
        self.profile = Profile(self.args.profile, self.args.profile_steps)
        self._make_schedule()
        self.first_step = self.state.global_step + 1
        self.find_packed, self.notices = False, RowNotices(self.args)
        self.rows = RunRows(trainer)

    def _make_schedule(self) -> None:
        """Build the learning-rate schedule from the trainer state, which is new or resumed."""
        trainer = self.trainer
        trainer.schedule = schedule = schedule_of(
            self.fixed, self.plan.max_steps, self.state.log_history, trainer.plateau_metrics
        )
        trainer.plateau_metrics = schedule.taken if isinstance(schedule, PlateauSchedule) else None

    @property
    def state(self) -> TrainerState:
        """The trainer's."""
        return self.trainer.state

    @property
    def losses(self) -> LossMeter:
        """The trainer's."""
        return self.trainer.losses

    @property
    def schedule(self) -> Schedule:
        """The trainer's."""
        schedule = self.trainer.schedule
        assert schedule is not None  # made with the loop
        return schedule

    def run(self) -> None:
        """To the last step, or until a callback stops the run.

        SystemExit after a signal; KeyboardInterrupt after Ctrl-C in a script, with the weights in the model
        that was given; NotFiniteError and others of runtime/errors.py.
        """
        self.find_packed = finds_packed(self.trainer.model, self.args, training=True)
        self.notices.find_packed = self.find_packed
        tell_differences(self.fixed)
        if self.trainer.train_rows.native is not None:
            self.notices.look_at(self.trainer.train_rows.native)
        try:
            while (asked := self._run_until_rollback()) is not None:
                self._roll_back(asked)
        finally:
            self.rows.end()
        self.profile.finish(self.trainer.engine)

    def _run_until_rollback(self) -> RollBackError | None:
        try:
            self._run_epochs()
            self.take_results(all=True)
        except RollBackError as asked:
            return asked
        return None

    def _run_epochs(self) -> None:
        """Epochs and steps from the step of the state."""
        trainer, flow = self.trainer, self.trainer.callbacks
        self.rows.begin()
        ended = self._do_what_is_due()
        epoch, first = divmod(self.state.global_step, self.plan.steps_per_epoch)
        if self.args.ignore_data_skip:
            first = 0
        while not ended and self.state.global_step < self.plan.max_steps and epoch < self.plan.num_epochs:
            self.rows.tell_epoch(epoch)
            trainer.fire("on_epoch_begin")
            self.agreed.agree()
            steps = self.rows.epoch(epoch, first)
            for step in range(first, self.plan.steps_per_epoch):
                with deadline(self.args, self._phase()):
                    taken = steps.take(step)
                self.rows.step_taken()
                if self.trainer.train_rows.native is None:
                    self.notices.look_at(taken.native)
                trainer.fire("on_step_begin")
                if self._is_left(steps.groups, step):
                    break
                self._step(steps.groups, taken, epoch, step)
                self._log_evaluate_save()
                if flow.control.should_epoch_stop or flow.control.should_training_stop:
                    break
                if step + 1 < self.plan.steps_per_epoch:
                    self._answer(self.agreed.take_signal())
            ended = self._end_epoch()
            # After the epoch's log: its losses are not in the checkpoint.
            self._answer(self.agreed.take_signal())
            epoch, first = epoch + 1, 0

    def _end_epoch(self) -> bool:
        """True if the run is to stop with it."""
        self.trainer.due = Due()
        self.trainer.fire("on_epoch_end")
        self._log_evaluate_save()
        return bool(self.trainer.control.should_training_stop)

    def _do_what_is_due(self) -> bool:
        """Do what the checkpoint of the start left undone (pending_work.py); True if the run ends."""
        due = self.trainer.due
        stop = due.stop
        if due.evaluate:
            self.trainer.control.should_evaluate, self.trainer.control.should_save = True, due.save
            self._log_evaluate_save()
            self._answer(self.agreed.take_signal())
            stop = stop or bool(self.trainer.control.should_training_stop)
        step = self.state.global_step
        ends = stop or step >= self.plan.max_steps or step % self.plan.steps_per_epoch == 0
        if due.epoch_end and ends:
            stop = self._end_epoch() or stop
        return stop

    def _is_left(self, groups: EpochGroups, step: int) -> bool:
        """True if a callback stopped before this accumulated step: skip the update, as transformers does."""
        left = groups.size_of(step) > 1 and self.agreed.stops_before_step()
        if left:
            self.trainer.fire("on_substep_end")
        return left

    def _phase(self) -> str:
        return "first_step" if self.state.global_step + 1 == self.first_step else "step"

    def _step(self, groups: EpochGroups, rows: StepRows, epoch: int, step: int) -> None:
        """One optimizer step on one accumulation group of all ranks, or none when it is left out."""
        trainer, number = self.trainer, self.state.global_step + 1
        tokens = 0
        trainer.model.set_mode(training=True)
        trainer.model.take_written_weights()
        self.profile.before_step(trainer.engine, number)
        if number in trainer.bad_steps.left_out:
            self.state.global_step = number
        else:
            for _ in range(groups.size_of(step) - 1):
                trainer.fire("on_substep_end")
            trainer.fire("on_pre_optimizer_step")
            with deadline(self.args, self._phase()):
                tokens = self._compute(rows, number)
            self.state.num_input_tokens_seen += rows.input_tokens
        self.state.epoch = epoch + groups.done_after(step) / self.plan.micro_batches
        trainer.due = Due(epoch_end=True)
        self.profile.after_step(trainer.engine, number)
        trainer.fire(
            "on_step_end", step_tokens=tokens, step_logs={"epoch": self.state.epoch, **self.losses.last()}
        )

    def _compute(self, rows: StepRows, number: int) -> int:
        """Begin step `number`, and check it when --replay_check says so. Returns its tokens."""
        trainer, every = self.trainer, self.args.replay_check
        checked = bool(every) and number % every == 0
        scale = trainer.loss_scale
        rate = self.schedule.rate(number - 1 - scale.schedule_lag)
        limit = trainer.bad_steps.loss_limit()
        trainer.engine.begin_step(
            rows.native,
            rows.plan.micro_batches,
            rows.plan.weights,
            loss_limit=limit,
            replay=checked,
            **self._step_options(rate),
            **self._noise(number, rows.padded_length),
            dropout_seed=dropout_seed(self.fixed, number),
            loss_scale=scale.value,
        )
        if checked:
            check_replay(trainer.engine, number)
        trainer.model.weights_moved()
        trainer.fire("on_optimizer_step")
        self.state.global_step = number
        self.state.total_flos += 6.0 * rows.padded_tokens * trainer.engine.num_non_embedding_parameters
        self.results.begun(number, rate, limit, has_targets=rows.plan.num_targets > 0)
        self.take_results(all=checked or scale.enabled)  # the next step's scale depends on it
        if checked:
            check_replicas(trainer.engine, number)
        return int(rows.plan.num_tokens)

    def _noise(self, number: int, padded_length: int) -> dict[str, Any]:
        if not self.fixed.neftune_noise_alpha:
            return {}
        return noise_options(self.fixed, padded_length, self.trainer.model.config.hidden_size, number)

    def _step_options(self, rate: float) -> dict[str, Any]:
        args = self.fixed
        return {
            "learning_rate": rate,
            "beta1": args.adam_beta1,
            "beta2": args.adam_beta2,
            "eps": args.adam_epsilon,
            "weight_decay": args.weight_decay,
            "max_grad_norm": self.args.max_grad_norm or 0.0,  # read at every step, as in transformers
            "label_smoothing": args.label_smoothing_factor,
            "rounding_seed": args.seed,
            "find_packed": self.find_packed,
        }

    def take_results(self, *, all: bool) -> None:
        """Losses of the steps begun: a GPU is one step late, unless `all` waits for it."""
        clipped, trainer = bool(self.args.max_grad_norm), self.trainer
        try:
            self.results.take(
                trainer.engine, self.losses, trainer.bad_steps, trainer.loss_scale, trainer.loss_watch,
                clipped=clipped, all=all,
            )  # fmt: skip
        except NotFiniteError as error:
            self.state.global_step = error.step - 1
            raise

    def _roll_back(self, asked: RollBackError) -> None:
        """Go back to the last checkpoint before the bad steps, and leave them out from there."""
        trainer, first = self.trainer, asked.steps[0]
        trainer.engine.take_results(all=True)
        self.results.clear()
        trainer.saver.wait()
        checkpoint = roll_back(trainer, first)
        if checkpoint is None:
            raise NotFiniteError(
                first, f"{asked.reason}; there is no checkpoint of an earlier step to go back to"
            ) from None
        trainer.model.weights_moved()
        trainer.bad_steps.rolled_back(asked.steps)
        trainer.control.should_training_stop = False  # of a step that is computed again
        self._make_schedule()
        steps = ", ".join(map(str, asked.steps))
        tell(f"step {first}: {asked.reason}; back to {checkpoint}, leaving out step {steps}")

    def _log_evaluate_save(self) -> None:
        trainer = self.trainer
        trainer.saver.poll()
        try:
            logged = self._log()
        except (NotFiniteError, RollBackError):
            self.agreed.agree(logged=True)  # the other ranks raise the same error at their next collective
            raise
        if self.agreed.agree(logged=logged):  # a callback of some ranks alone wanted it
            trainer.control.should_log = not logged
            self._log()
            self.agreed.agree()
        control = trainer.control
        if control.should_evaluate or control.should_save:
            self.take_results(all=True)
        if control.should_evaluate:
            self._evaluate()
        if trainer.control.should_save:
            trainer.save_checkpoint()
            self.agreed.agree()

    def _log(self) -> bool:
        """True if there was something to log, and a callback or the cadence wanted it."""
        if self.trainer.control.should_log:
            self.take_results(all=True)
            if self.state.global_step > self.losses.logged_step:
                self.trainer.log_step(self.losses.take(self.state.global_step))
                return True
        return False

    def _evaluate(self) -> None:
        trainer = self.trainer
        trainer.due.begin_evaluation(trainer.control.should_save, len(self.state.log_history))
        metrics = deciding_metrics(self.args, trainer.evaluate_in_training())
        trainer.control.should_save |= trainer.due.save  # which a checkpoint asked for meanwhile cleared
        trainer.best_model.take(metrics)
        if isinstance(self.schedule, PlateauSchedule) and decides(self.args, metrics, self.state.global_step):
            self.schedule.take(metrics[metric_key(self.args.metric_for_best_model or "loss")])
        self.agreed.agree()
        trainer.due.end_evaluation()
        trainer.saver.remember(None)  # a checkpoint taken meanwhile does not know of its results

    def answer_signals(self) -> None:
        """After a signal to any rank: save and leave, unless it only asked for a checkpoint; collective."""
        self._answer(self.agreed.exchange_signals())

    def _answer(self, number: int) -> None:
        """To the signal `number`; 0: none."""
        if not number:
            return
        self.take_results(all=True)
        if number == signal.SIGINT and not self.guard.is_watched:
            self._interrupt_script()
        tell(self._save_at(number))
        if number != self.guard.only_save:
            raise SystemExit(EXIT_BASE + number)

    def _save_at(self, number: int) -> str:
        """Save, where there is something to save, after the signal `number`. Returns a line about it."""
        if not self.state.global_step:
            return "no step is done: there is nothing to save"
        self._note_stop(number)
        path = self.trainer.save_checkpoint()
        with deadline(self.args, "save"):
            self.trainer.saver.wait()
        done = self.trainer.saver.has(path)
        return f"saved {path}; the same command resumes from it" if done else f"{path} was not saved"

    def _interrupt_script(self) -> NoReturn:
        """After Ctrl-C: save, and raise; the script may go on with the weights, saved or not."""
        try:
            line, failure = self._try_to_save(signal.SIGINT)
        except BaseException:  # a second Ctrl-C, or a callback's error: other ranks may not hear of it
            if launch().world_size == 1:
                self.trainer.model.give_back()
            raise
        tell(line)
        self.trainer.model.give_back()
        raise (KeyboardInterrupt if is_interactive() else Interrupted)(line) from failure

    def _try_to_save(self, number: int) -> tuple[str, Exception | None]:
        """The line of `_save_at`, and what kept all ranks from saving. Raises what may be of one rank."""
        try:
            return self._save_at(number), None
        except _C.CollectiveError:
            raise
        except Exception as error:
            path = self.trainer.checkpoint_path()
            if self.trainer.saver.has(path):  # of a callback
                raise
            return f"{path} could not be saved: {error}", error

    def _note_stop(self, number: int) -> None:
        """That a callback had ended the run, before a signal made it leave."""
        stopped = self.trainer.control.should_training_stop and self.state.global_step < self.plan.max_steps
        if stopped and number != self.guard.only_save:
            self.trainer.due.stop = True
            self.trainer.saver.remember(None)
