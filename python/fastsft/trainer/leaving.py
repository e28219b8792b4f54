"""Handling of pending signals: all ranks save a checkpoint together, and leave (docs/signals.md)."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, NoReturn

from fastsft import _C
from fastsft.runtime.errors import Interrupted
from fastsft.runtime.interactive import is_interactive
from fastsft.runtime.launch import ends_with_traceback, launch
from fastsft.runtime.messages import tell
from fastsft.runtime.timeouts import deadline
from fastsft.trainer.signals import EXIT_BASE

if TYPE_CHECKING:
    from fastsft.trainer.run import Run


def answer_signals(run: Run) -> None:
    """Exchange signals between ranks, and handle a signal that any rank has received. Collective."""
    answer(run, run.control.exchange_signals())


def answer(run: Run, number: int) -> None:
    """Save a checkpoint because of signal `number`, and end the run. Collective.

    After SIGUSR1, which only requests a checkpoint, the run goes on. number: 0 if there was no signal; then
    do nothing.
    """
    if not number:
        return
    run.stepper.collect(all=True)
    if number == signal.SIGINT and not run.signals.is_watched:
        _interrupt_script(run)
    tell(_save_at(run, number))
    if number != run.signals.only_save:
        raise SystemExit(EXIT_BASE + number)


def _save_at(run: Run, number: int) -> str:
    """Save a checkpoint if at least one step is done; return a message about the save."""
    state, saver = run.state, run.checkpoints.saver
    if not state.global_step:
        return "no step is done: there is nothing to save"
    stopped = run.events.control.should_training_stop and state.global_step < run.planner.plan.max_steps
    if stopped and number != run.signals.only_save:  # a callback had stopped the run before the signal
        run.pending.stop = True
        saver.remember(None)
    path = run.save()
    with deadline(run.setup.args, "save"):
        saver.wait()
    if not saver.has(path):
        return f"{path} was not saved"
    leaves = number != run.signals.only_save and ends_with_traceback()
    follows = "; the traceback below is torchrun's own, of the signal" if leaves else ""
    return f"saved {path}; the same command resumes from it{follows}"


def _interrupt_script(run: Run) -> NoReturn:
    """Handle Ctrl-C in a script: save, copy the weights into the script's model, and raise an interrupt.

    The weights are copied even if the save fails, so that the script can still use the trained model.
    """
    try:
        line, failure = _try_to_save(run, signal.SIGINT)
    except BaseException:  # after a second Ctrl-C or a callback's error, other ranks may miss the copy
        if launch().world_size == 1:
            run.setup.model.copy_to_module()
        raise
    tell(line)
    run.setup.model.copy_to_module()
    raise (KeyboardInterrupt if is_interactive() else Interrupted)(line) from failure


def _try_to_save(run: Run, number: int) -> tuple[str, Exception | None]:
    """Return a message about the save, and the error with which it failed on all ranks, or None.

    Errors of a collective are raised, and errors of a callback that ran after the save.
    """
    try:
        return _save_at(run, number), None
    except _C.CollectiveError:
        raise
    except Exception as error:
        path = run.checkpoints.path()
        if run.checkpoints.saver.has(path):  # the save succeeded, so a callback raised the error
            raise
        return f"{path} could not be saved: {error}", error
