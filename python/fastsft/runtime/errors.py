"""Define interrupts and the errors that end a run, with their exit statuses (docs/signals.md)."""

from __future__ import annotations

import signal
import threading
from types import FrameType


class RunStoppedError(RuntimeError):
    """An error that ends the run: every rank raises it, and rank 0 prints it.

    exit_status: the exit status of the processes.
    """

    exit_status = 1


class Interrupted(SystemExit, KeyboardInterrupt):
    """The exception that a run raises after Ctrl-C, once it has saved.

    A script can catch it as KeyboardInterrupt. If no code catches it, the process ends with status 130 and
    without a traceback. At a prompt and in a notebook (interactive.is_interactive) a plain KeyboardInterrupt
    is raised instead, because SystemExit would end the interpreter.
    """

    def __init__(self, line: str) -> None:
        super().__init__(130)
        self.line = line

    def __str__(self) -> str:
        return self.line


class NotFiniteError(RunStoppedError):
    """The loss or a gradient of `step` is not finite, or the loss has a spike. No weight was changed."""

    exit_status = 4

    def __init__(self, step: int, reason: str) -> None:
        super().__init__(f"step {step}: {reason}")
        self.step = step


class ReplayMismatchError(RunStoppedError):
    """A step was computed twice, and the results differ in their bits."""

    exit_status = 16


class ReplicaMismatchError(RunStoppedError):
    """Replicas of the weights differ in their bits."""

    exit_status = 17


def end_at_interrupt() -> None:
    """Let SIGINT end the process at once, unless another handler is set.

    Used during imports: some libraries catch a KeyboardInterrupt while they are imported, and would then stay
    half loaded.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def raise_at_interrupt() -> None:
    """Undo `end_at_interrupt`: let SIGINT raise KeyboardInterrupt again."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(number: int, frame: FrameType | None) -> None:
    # OpenBLAS raises SIGINT if it cannot start a thread. The run then reports that error itself.
    if _gets_a_thread():
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.raise_signal(signal.SIGINT)


def _gets_a_thread() -> bool:
    thread = threading.Thread(target=int)
    try:
        thread.start()
    except RuntimeError:
        return False
    thread.join()
    return True
