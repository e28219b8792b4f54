"""The start of a run: from step 0, or from a checkpoint (docs/spec/trainer_semantics.md, section 17)."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastsft.callbacks.state import TrainerState
from fastsft.checkpoint.content import rotate_what_is_left, source_checkpoint
from fastsft.checkpoint.finished_run import forget_end
from fastsft.checkpoint.load import load_checkpoint, newest_checkpoint
from fastsft.checkpoint.run_identity import warn_of_change
from fastsft.checkpoint.start import archive_abandoned
from fastsft.model.tuned_gemms import forget_tuned_gemms
from fastsft.ranks.exchange import AllOrNone
from fastsft.runtime.messages import tell
from fastsft.runtime.timeouts import deadline
from fastsft.trainer.events import set_intervals
from fastsft.trainer.preflight import warn_without_evaluations

if TYPE_CHECKING:
    from fastsft.trainer.run import Run

# State fields that a resumed run sets itself, instead of reading them from trainer_state.json.
_OF_THIS_RUN = (
    "max_steps", "num_train_epochs", "logging_steps", "eval_steps", "save_steps", "train_batch_size",
    "is_local_process_zero", "is_world_process_zero",
)  # fmt: skip


def checkpoint_to_resume(output_dir: str, wanted: bool | str | None) -> str | None:
    """Return the checkpoint from which to resume, or None to start from step 0. Collective.

    wanted: a path, True for the newest valid checkpoint of `output_dir`, or None or False for no resume.
    ValueError if `wanted` is True and there is no valid checkpoint.
    """
    if not wanted:
        return None
    if wanted is not True:
        return str(wanted)
    newest = newest_checkpoint(output_dir)
    if newest is None:
        raise ValueError(
            f"No valid checkpoint found in output directory ({output_dir}); without "
            "--resume_from_checkpoint the run starts over, or continues where there is one"
        )
    return str(newest)


def check_not_beyond(run: Run, checkpoint: str) -> None:
    """Raise ValueError if `checkpoint` was saved after the last planned step of `run`. Collective.

    Without this check, the saved model would have been trained for more steps than requested.
    """
    agreement = AllOrNone(f"resuming from {checkpoint}")
    found = agreement.attempt_on_rank0(
        lambda: TrainerState.load_from_json(Path(checkpoint) / "trainer_state.json").global_step
    )
    step, planned = agreement.settle_on_rank0(found), run.planner.plan.max_steps
    if step > planned:
        raise ValueError(
            f"{checkpoint}: it is of step {step}, and now {planned} are asked for, so nothing would be "
            "trained; ask for more steps, go on from an earlier one with --resume_from_checkpoint, or start "
            f"over with --no_resume True; `fastsft convert {checkpoint} OUT` makes a model of this one"
        )


def start(run: Run, checkpoint: str | None, *, is_automatic: bool) -> None:
    """Prepare the first step: resume, archive checkpoints of other runs, reserve memory. Collective.

    is_automatic: True if `checkpoint` is the newest checkpoint of `output_dir`. No checkpoint there has to be
    archived then.
    """
    setup, state, plan = run.setup, run.state, run.planner.plan
    state.epoch, state.max_steps, state.num_train_epochs = 0.0, plan.max_steps, plan.num_epochs
    set_intervals(state, setup.args)
    warn_without_evaluations(setup.args, state, plan.steps_per_epoch)
    run.batches.open_reader()
    forget_tuned_gemms()
    if checkpoint is not None:
        resume(run, checkpoint)
        run.stepper.loss_watch.begin(state.log_history)
    forget_end(setup.args.output_dir or ".")
    if not is_automatic:
        archive_abandoned(setup.args.output_dir or ".", checkpoint, setup.model.source_directory)
    run.checkpoints.saver.check_room()
    run.counter.begin(state)
    run.first_step, run.start_time = state.global_step, time.monotonic()
    run.planner.reserve()
    run.stepper.prepare()
    setup.model.begin_training(is_stale=checkpoint is not None)
    setup.model.set_mode(training=True)


def resume(run: Run, checkpoint: str) -> None:
    """Load `checkpoint` into the engine and the state of `run`, and print its step. Collective."""
    saved = _load(run, checkpoint)
    _rotate(run, Path(checkpoint))
    state, position = run.state, saved.get("position") or {}
    run.stepper.prepare()
    rate = run.stepper.next_rate()
    _warn_of_rate(checkpoint, saved.get("next_learning_rate"), rate)
    within = f" after {position['conversations']:,} conversations of it" if position else ""
    tell(
        f"resumed from {checkpoint}: step {state.global_step} of {run.planner.plan.max_steps}, "
        f"epoch {state.epoch or 0:.4g}{within}, "
        f"next learning rate {rate:g}"
    )


def _rotate(run: Run, checkpoint: Path) -> None:
    """Delete checkpoints beyond --save_total_limit that a killed run had not yet deleted."""
    args, output_dir = run.args, run.setup.output_dir
    if not args.save_total_limit or checkpoint.absolute().parent != output_dir.absolute():
        return
    best = Path(run.state.best_model_checkpoint or "").name
    kept = [best, checkpoint.name, source_checkpoint(run.model, output_dir)]
    rotate_what_is_left(args, output_dir, kept)


def _warn_of_rate(checkpoint: str, saved: float | None, current: float) -> None:
    """Warn if a transformers checkpoint has another learning rate for its next step than `current`.

    saved: the checkpoint's learning rate; None for other checkpoints.
    """
    if saved is not None and not math.isclose(saved, current, rel_tol=1e-6, abs_tol=1e-12):
        warn_of_change(checkpoint, "learning_rate of the next step", f"{saved:g}", f"{current:g}")


def roll_back(run: Run, step: int) -> str | None:
    """Load the newest checkpoint before `step`; return its path, or None if there is none. Collective.

    Checkpoints of later steps are archived, since the run computes other steps from here on.
    """
    output_dir = run.args.output_dir or "."
    checkpoint = newest_checkpoint(output_dir, before=step)
    if checkpoint is None:
        return None
    _load(run, str(checkpoint))
    archive_abandoned(output_dir, checkpoint)
    return str(checkpoint)


def _load(run: Run, checkpoint: str) -> dict[str, Any]:
    with deadline(run.args, "init"):
        saved: dict[str, Any] = load_checkpoint(run, checkpoint)
    state = run.state
    for name, value in vars(TrainerState.load_from_json(Path(checkpoint) / "trainer_state.json")).items():
        if name not in _OF_THIS_RUN:
            setattr(state, name, value)
    run.pending.restore(saved.get("due"))
    run.stepper.restore(saved, state.global_step)
    state.log_history = state.log_history[: run.pending.log_entries]
    run.checkpoints.resumed(checkpoint)
    by_flag = run.args.restore_callback_states_from_checkpoint
    run.events.restore(state.stateful_callbacks, of_scripts=by_flag)
    return saved
