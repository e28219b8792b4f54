"""Ends of a run that all ranks come to together, each with an exit status of its own (docs/signals.md)."""

from __future__ import annotations


class RunStoppedError(RuntimeError):
    """Raised alike on every rank; rank 0 says it. `exit_status`: of the process."""

    exit_status = 1


class Interrupted(SystemExit, KeyboardInterrupt):
    """After Ctrl-C in a script, when the run has saved: `except KeyboardInterrupt` has it.

    Where nothing does, the process ends with status 130 and no traceback. At a prompt and in a notebook it is
    a plain KeyboardInterrupt instead (place.is_interactive): SystemExit would close them.
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
