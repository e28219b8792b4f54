"""The checkpoint that a run goes on from, and its state (docs/spec/trainer_semantics.md, section 17)."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastsft.callbacks.state import TrainerState
from fastsft.checkpoint.content import rotate_what_is_left, source_checkpoint
from fastsft.checkpoint.load import check_checkpoint, load_checkpoint, newest_checkpoint
from fastsft.checkpoint.run_identity import warn_of_change
from fastsft.checkpoint.start import archive_abandoned
from fastsft.ranks.exchange import AllOrNone
from fastsft.runtime.messages import tell
from fastsft.runtime.timeouts import deadline
from fastsft.trainer.loss_meter import LossMeter
from fastsft.trainer.pending_work import Due
from fastsft.trainer.schedule import schedule_of

if TYPE_CHECKING:
    from fastsft.trainer.running import Running

# What a resumed run sets itself instead of taking it from trainer_state.json, which rank 0 wrote.
_OF_THIS_RUN = (
    "max_steps", "num_train_epochs", "logging_steps", "eval_steps", "save_steps", "train_batch_size",
    "is_local_process_zero", "is_world_process_zero",
)  # fmt: skip


def checkpoint_to_resume(output_dir: str, wanted: bool | str | None) -> str | None:
    """The directory that `wanted` asks for: True is the newest of `output_dir` that verifies; collective.

    ValueError when True finds none.
    """
    if not wanted:
        return None
    if wanted is not True:
        return str(wanted)
    newest = newest_checkpoint(output_dir)
    if newest is None:
        raise ValueError(f"No valid checkpoint found in output directory ({output_dir})")
    return str(newest)


def check_resumable(trainer: Running, checkpoint: str) -> None:
    """ValueError on all ranks unless `checkpoint` is of this run; collective. Its micro-batches are kept."""
    check_checkpoint(trainer, checkpoint)


def check_not_beyond(trainer: Running, checkpoint: str) -> None:
    """ValueError where `checkpoint` is of a later step than the run is to have; collective.

    It would be saved as the model of fewer steps than it was trained for.
    """
    agreement = AllOrNone(f"resuming from {checkpoint}")
    found = agreement.attempt_on_rank0(
        lambda: TrainerState.load_from_json(Path(checkpoint) / "trainer_state.json").global_step
    )
    step, planned = agreement.settle_on_rank0(found), trainer.plan.max_steps
    if step > planned:
        raise ValueError(
            f"{checkpoint}: it is of step {step}, and now {planned} are asked for, so nothing would be "
            "trained; ask for more steps, go on from an earlier one with --resume_from_checkpoint, or start "
            f"over with --no_resume True; `fastsft convert {checkpoint} OUT` makes a model of this one"
        )


def resume(trainer: Running, checkpoint: str) -> None:
    """Load `checkpoint` into the engine and the state of `trainer`, and say its step; collective."""
    saved = _load(trainer, checkpoint)
    _rotate(trainer, Path(checkpoint))
    state, max_steps = trainer.state, trainer.plan.max_steps
    position = (saved or {}).get("position") or {}
    args = trainer.fixed_arguments.over(trainer.args)
    schedule = schedule_of(args, max_steps, state.log_history, trainer.plateau_metrics)
    lag = (saved or {}).get("loss_scale", {}).get("schedule_lag", 0)
    rate = schedule.rate(state.global_step - lag)
    _warn_of_rate(checkpoint, (saved or {}).get("next_learning_rate"), rate)
    within = f" after {position['conversations']:,} conversations of it" if position else ""
    tell(
        f"resumed from {checkpoint}: step {state.global_step} of {max_steps}, "
        f"epoch {state.epoch or 0:.4g}{within}, "
        f"next learning rate {rate:g}"
    )


def _rotate(trainer: Running, checkpoint: Path) -> None:
    """Remove the checkpoints that a run had still to remove when it was killed after its last save."""
    args, output_dir = trainer.args, Path(trainer.args.output_dir or ".")
    if not args.save_total_limit or checkpoint.absolute().parent != output_dir.absolute():
        return
    best = Path(trainer.state.best_model_checkpoint or "").name
    kept = [best, checkpoint.name, source_checkpoint(trainer.model, output_dir)]
    rotate_what_is_left(args, output_dir, kept)


def _warn_of_rate(checkpoint: str, saved: float | None, current: float) -> None:
    """Of a checkpoint of transformers, which says the rate of its next step."""
    if saved is not None and not math.isclose(saved, current, rel_tol=1e-6, abs_tol=1e-12):
        warn_of_change(checkpoint, "learning_rate of the next step", f"{saved:g}", f"{current:g}")


def roll_back(trainer: Running, step: int) -> str | None:
    """Load the newest checkpoint of an earlier step than `step`; None when there is none; collective.

    Checkpoints of later steps are put aside: they were made on the way that is left.
    """
    output_dir = trainer.args.output_dir or "."
    found = newest_checkpoint(output_dir, before=step)
    if found is None:
        return None
    _load(trainer, str(found))
    archive_abandoned(output_dir, found)
    return str(found)


def _load(trainer: Running, checkpoint: str) -> dict[str, Any] | None:
    with deadline(trainer.args, "init"):
        saved: dict[str, Any] | None = load_checkpoint(trainer, checkpoint)
    fresh, trainer.state = trainer.state, TrainerState.load_from_json(Path(checkpoint) / "trainer_state.json")
    for name in _OF_THIS_RUN:
        setattr(trainer.state, name, getattr(fresh, name))
    trainer.best_model.resumed(checkpoint)
    trainer.due = Due.of_checkpoint(saved)
    trainer.losses = LossMeter.of_checkpoint(saved, trainer.state.global_step)
    trainer.state.log_history = trainer.state.log_history[: trainer.due.log_entries]
    trainer.plateau_metrics = ((saved or {}).get("plateau") or {}).get("taken")
    trainer.bad_steps.restore((saved or {}).get("bad_steps", {}))
    trainer.loss_scale.restore((saved or {}).get("loss_scale", {}))
    trainer.saved_as(checkpoint)
    if trainer.args.restore_callback_states_from_checkpoint:
        trainer.callbacks.restore(trainer.state.stateful_callbacks)
    return saved
