"""Threads that Python code needs: where the system gives none, the message says what to do."""

from __future__ import annotations

import threading


def start_needed(thread: threading.Thread, what: str) -> None:
    """Start it. _C.ThreadDeniedError, a RuntimeError, where a limit of processes or memory forbids that.

    what: what the thread is for.
    """
    try:
        thread.start()
    except RuntimeError as error:
        raise denied(what, error) from error


def denied(what: str, error: RuntimeError) -> Exception:
    """The error of `start_needed`, for threads that something else starts."""
    from fastsft import _C

    return _C.ThreadDeniedError(
        f"cannot start a thread for {what}: {error}; allow more processes (ulimit -u, pids of the container) "
        "or more memory (ulimit -v)"
    )
