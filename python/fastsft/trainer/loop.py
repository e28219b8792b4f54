"""The training loop over epochs and steps, with the logs, evaluations and saves after each
(docs/spec/trainer_semantics.md, section 15).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastsft.reporting.status import stop_reason
from fastsft.runtime.errors import NotFiniteError
from fastsft.runtime.messages import tell
from fastsft.trainer.bad_steps import RollBackError
from fastsft.trainer.evaluation import decides
from fastsft.trainer.events import RunGuard, deciding_metrics
from fastsft.trainer.leaving import answer, answer_signals
from fastsft.trainer.resume import roll_back
from fastsft.trainer.schedule import PlateauSchedule, metric_key

if TYPE_CHECKING:
    from fastsft.trainer.run import Run


def train(run: Run) -> None:
    """Train until the last step or until a callback stops the run; load the best weights. Collective.

    SystemExit after a signal. KeyboardInterrupt after Ctrl-C in a script; the script's model then has the
    current weights. NotFiniteError or another error of runtime/errors.py after a bad step.
    """
    with RunGuard() as signals, run.answering(signals, lambda: answer_signals(run)):
        run.events.fire("on_train_begin")
        try:
            run.begin_steps()
            while True:
                try:
                    run_epochs(run)
                    break
                except RollBackError as bad:
                    go_back(run, bad)
            run.end_steps()
        except BaseException as error:
            run.checkpoints.saver.abandon(error)
            run.events.fire("on_train_stopped", reason=stop_reason(error))
            raise


def run_epochs(run: Run) -> None:
    """Train from `state.global_step` on, epoch by epoch, until the last step or until a callback stops."""
    state, plan, events = run.state, run.planner.plan, run.events
    run.batches.begin(*run.pop_random_states())
    is_over = finish_pending_work(run)
    epoch, first_step = run.position()
    while not is_over and state.global_step < plan.max_steps and epoch < plan.num_epochs:
        run.batches.tell_epoch(epoch)
        events.fire("on_epoch_begin")
        run.control.agree()
        for batch in run.batches.epoch(epoch, first_step, run.stepper.phase):
            events.fire("on_step_begin")
            if batch.num_micro_batches > 1 and run.control.stops_before_step():
                events.fire("on_substep_end")  # like transformers, drop a step that was stopped here
                break
            run.stepper.step(batch)
            log_evaluate_save(run)
            if events.control.should_epoch_stop or events.control.should_training_stop:
                break
            if not batch.ends_epoch:
                answer(run, run.control.pop_signal())
        is_over = end_epoch(run)
        # Signals are handled after the epoch's log. Before it, a checkpoint would lack the log's losses.
        answer(run, run.control.pop_signal())
        epoch, first_step = epoch + 1, 0
    run.stepper.collect(all=True)


def end_epoch(run: Run) -> bool:
    """Fire on_epoch_end, log, evaluate and save; return True if the run stops after this epoch."""
    run.pending.clear()
    run.events.fire("on_epoch_end")
    log_evaluate_save(run)
    return bool(run.events.control.should_training_stop)


def finish_pending_work(run: Run) -> bool:
    """Do the pending work of the checkpoint (`PendingWork`); return True if the run ends after this work."""
    pending, plan, step = run.pending, run.planner.plan, run.state.global_step
    # Patience that has run out in the checkpoint: the run was killed before its end was saved.
    stop = pending.stop or run.stopped_early
    if run.stopped_early and step < plan.max_steps:
        reason = f" ({run.stop_reason})" if run.stop_reason else ""
        tell(
            f"the checkpoint's patience had run out{reason}: nothing is trained; a larger "
            "--early_stopping_patience goes on"
        )
    ends_epoch = pending.epoch_end
    if pending.evaluate:
        run.events.control.should_evaluate, run.events.control.should_save = True, pending.save
        log_evaluate_save(run)
        answer(run, run.control.pop_signal())
        stop = stop or bool(run.events.control.should_training_stop)
    ends = stop or step >= plan.max_steps or step % plan.steps_per_epoch == 0
    if ends_epoch and ends:
        stop = end_epoch(run) or stop
    return stop


def log_evaluate_save(run: Run) -> None:
    """Log, evaluate and save if the intervals or a callback of any rank ask for it. Collective."""
    run.checkpoints.saver.poll()
    try:
        logged = log(run)
    except (NotFiniteError, RollBackError):
        run.control.agree(logged=True)  # the other ranks wait in `agree`, and raise at the next collective
        raise
    if run.control.agree(logged=logged):  # callbacks on some ranks, but not all, have requested a log
        run.events.control.should_log = not logged
        log(run)
        run.control.agree()
    control = run.events.control
    if control.should_evaluate or control.should_save:
        run.stepper.collect(all=True)
    if control.should_evaluate:
        evaluate(run)
    if run.events.control.should_save:
        run.save()
        run.control.agree()


def log(run: Run) -> bool:
    """Log the steps since the last log if should_log is set; return True if something was logged."""
    if run.events.control.should_log:
        run.stepper.collect(all=True)
        if run.state.global_step > run.stepper.losses.logged_step:
            run.log(run.stepper.losses.take(run.state.global_step))
            return True
    return False


def evaluate(run: Run) -> None:
    """Evaluate; update the best model and a plateau schedule with rank 0's metrics. Collective."""
    pending, args, schedule = run.pending, run.setup.args, run.stepper.schedule
    pending.begin_evaluation(run.events.control.should_save, len(run.state.log_history))
    metrics = deciding_metrics(args, run.evaluate())
    run.events.control.should_save |= pending.save  # a save during the evaluation may have cleared it
    run.checkpoints.best.compare(metrics)
    if isinstance(schedule, PlateauSchedule) and decides(args, metrics, run.state.global_step):
        schedule.take(metrics[metric_key(args.metric_for_best_model or "loss")])
    run.control.agree()
    pending.end_evaluation()
    run.checkpoints.saver.remember(None)  # a checkpoint saved during the evaluation lacks its results


def go_back(run: Run, bad: RollBackError) -> None:
    """Load the last checkpoint before the bad steps, and skip these steps from now on. Collective.

    NotFiniteError if there is no such checkpoint.
    """
    first = bad.steps[0]
    run.stepper.discard_results()
    run.checkpoints.saver.wait()
    checkpoint = roll_back(run, first)
    if checkpoint is None:
        raise NotFiniteError(
            first, f"{bad.reason}; there is no checkpoint of an earlier step to go back to"
        ) from None
    run.setup.model.mark_stale()
    run.stepper.rolled_back(bad.steps)
    run.events.control.should_training_stop = False  # the step in which it was set is computed again
    steps = ", ".join(map(str, bad.steps))
    tell(f"step {first}: {bad.reason}; back to {checkpoint}, leaving out step {steps}")
