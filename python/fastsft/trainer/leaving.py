"""Answers to signals: save a checkpoint and leave, on all ranks together (docs/signals.md)."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, NoReturn

from fastsft import _C
from fastsft.runtime.errors import Interrupted
from fastsft.runtime.interactive import is_interactive
from fastsft.runtime.launch import launch
from fastsft.runtime.messages import tell
from fastsft.runtime.timeouts import deadline
from fastsft.trainer.signals import EXIT_BASE

if TYPE_CHECKING:
    from fastsft.trainer.run import Run


def answer_signals(run: Run) -> None:
    """Exchange signals between ranks, and answer one that any rank received. Collective."""
    answer(run, run.control.exchange_signals())


def answer(run: Run, number: int) -> None:
    """Save after signal `number` and leave, unless it only asks for a checkpoint; 0: none. Collective."""
    if not number:
        return
    run.stepper.collect(all=True)
    if number == signal.SIGINT and not run.signals.is_watched:
        _interrupt_script(run)
    tell(_save_at(run, number))
    if number != run.signals.only_save:
        raise SystemExit(EXIT_BASE + number)


def _save_at(run: Run, number: int) -> str:
    """Save after signal `number` if a step is done. Returns a line about the save."""
    state, saver = run.state, run.checkpoints.saver
    if not state.global_step:
        return "no step is done: there is nothing to save"
    stopped = run.events.control.should_training_stop and state.global_step < run.planner.plan.max_steps
    if stopped and number != run.signals.only_save:  # a callback had ended the run before the signal
        run.pending.stop = True
        saver.remember(None)
    path = run.save()
    with deadline(run.setup.args, "save"):
        saver.wait()
    return f"saved {path}; the same command resumes from it" if saver.has(path) else f"{path} was not saved"


def _interrupt_script(run: Run) -> NoReturn:
    """Save after Ctrl-C, and raise; the script may go on with the weights, saved or not."""
    try:
        line, failure = _try_to_save(run, signal.SIGINT)
    except BaseException:  # a second Ctrl-C, or a callback's error: other ranks may not hear of it
        if launch().world_size == 1:
            run.setup.model.copy_to_module()
        raise
    tell(line)
    run.setup.model.copy_to_module()
    raise (KeyboardInterrupt if is_interactive() else Interrupted)(line) from failure


def _try_to_save(run: Run, number: int) -> tuple[str, Exception | None]:
    """Return the line of `_save_at`, and the error that kept all ranks from saving; raise other errors."""
    try:
        return _save_at(run, number), None
    except _C.CollectiveError:
        raise
    except Exception as error:
        path = run.checkpoints.path()
        if run.checkpoints.saver.has(path):  # the checkpoint is there: a callback raised
            raise
        return f"{path} could not be saved: {error}", error
