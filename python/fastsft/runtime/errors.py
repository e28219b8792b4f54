"""Interrupts, and errors that end a run on all ranks with an exit status of their own (docs/signals.md)."""

from __future__ import annotations

import signal
import threading
from types import FrameType


class RunStoppedError(RuntimeError):
    """Raised on every rank alike; rank 0 prints it. `exit_status`: of the process."""

    exit_status = 1


class Interrupted(SystemExit, KeyboardInterrupt):
    """Raised in a script after Ctrl-C, when the run has saved: `except KeyboardInterrupt` catches it.

    If nothing catches it, the process ends with status 130 and no traceback. At a prompt and in a notebook a
    plain KeyboardInterrupt is raised instead (interactive.is_interactive): SystemExit would close them.
    """

    def __init__(self, line: str) -> None:
        super().__init__(130)
        self.line = line

    def __str__(self) -> str:
        return self.line


class NotFiniteError(RunStoppedError):
    """Loss or gradient of `step` is NaN or infinite, or the loss is a spike; the step changed no weight."""

    exit_status = 4

    def __init__(self, step: int, reason: str) -> None:
        super().__init__(f"step {step}: {reason}")
        self.step = step


class ReplayMismatchError(RunStoppedError):
    """A step that was computed twice gave different bits."""

    exit_status = 16


class ReplicaMismatchError(RunStoppedError):
    """Ranks that should hold the same bits hold different ones."""

    exit_status = 17


def end_at_interrupt() -> None:
    """Let SIGINT end the process, unless a handler is set already.

    Some libraries swallow a KeyboardInterrupt during their import and stay half loaded.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def raise_at_interrupt() -> None:
    """Let SIGINT raise KeyboardInterrupt again, after `end_at_interrupt`."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(number: int, frame: FrameType | None) -> None:
    # OpenBLAS also raises SIGINT if it gets no thread; the run reports that itself.
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
