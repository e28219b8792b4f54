"""Define interrupts, and the errors that end a run on all ranks, each with its own exit status
(docs/signals.md).
"""

from __future__ import annotations

import signal
import threading
from types import FrameType


class RunStoppedError(RuntimeError):
    """Error that every rank raises and rank 0 prints. `exit_status`: exit status of the processes."""

    exit_status = 1


class Interrupted(SystemExit, KeyboardInterrupt):
    """Exception that a script gets after Ctrl-C, once the run has saved; `except KeyboardInterrupt` catches
    it.

    If it is not caught, the process ends with status 130 and without a traceback. At a prompt and in a
    notebook (interactive.is_interactive) a plain KeyboardInterrupt is raised instead, because SystemExit
    would end the session.
    """

    def __init__(self, line: str) -> None:
        super().__init__(130)
        self.line = line

    def __str__(self) -> str:
        return self.line


class NotFiniteError(RunStoppedError):
    """Error about a loss or gradient that is NaN or infinite, or a spike of the loss, in `step`.

    The step changed no weight.
    """

    exit_status = 4

    def __init__(self, step: int, reason: str) -> None:
        super().__init__(f"step {step}: {reason}")
        self.step = step


class ReplayMismatchError(RunStoppedError):
    """Error about a step that was computed twice with different bits as results."""

    exit_status = 16


class ReplicaMismatchError(RunStoppedError):
    """Error about replicas whose bits differ although they should be equal."""

    exit_status = 17


def end_at_interrupt() -> None:
    """Let SIGINT end the process at once, unless another handler is set.

    Used during imports, because some libraries catch a KeyboardInterrupt in their import and stay half
    loaded.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def raise_at_interrupt() -> None:
    """Undo `end_at_interrupt`: let SIGINT raise KeyboardInterrupt again."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(number: int, frame: FrameType | None) -> None:
    # OpenBLAS raises SIGINT if it cannot start a thread; in that case the run itself reports the error.
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
