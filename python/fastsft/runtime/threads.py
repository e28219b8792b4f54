"""Start threads, with a clear error if the system refuses, and pass items to a thread with a time limit."""

from __future__ import annotations

import threading
import time
from collections import deque
from queue import Empty
from typing import Generic, TypeVar


def start_needed(thread: threading.Thread, what: str) -> None:
    """Start `thread`. what: the thread's purpose, for the message.

    Raise _C.ThreadDeniedError (a RuntimeError) if a process or memory limit prevents the start.
    """
    try:
        thread.start()
    except RuntimeError as error:
        raise denied(what, error) from error


def denied(what: str, error: RuntimeError) -> Exception:
    """Return the exception of `start_needed` for a thread that other code could not start."""
    from fastsft import _C

    return _C.ThreadDeniedError(
        f"cannot start a thread for {what}: {error}; allow more processes (ulimit -u, pids of the container) "
        "or more memory (ulimit -v)"
    )


T = TypeVar("T")


class TimedQueue(Generic[T]):
    """A first-in, first-out queue with one reader and any number of writers.

    It replaces queue.SimpleQueue because in CPython 3.11 its `get(timeout=...)` waits forever if the timeout
    passes before the wait begins, which happens on a busy machine. It replaces queue.Queue because an
    interrupt can leave that queue's lock taken.
    """

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._wake = threading.Lock()  # released by `put`, acquired by the reader when it looks for an item
        self._wake.acquire()

    def put(self, item: T) -> None:
        """Add `item` without waiting."""
        self._items.append(item)
        try:
            self._wake.release()
        except RuntimeError:  # the reader has not looked since the last `put`
            return

    def get(self, timeout: float | None = None) -> T:
        """Remove and return the first item.

        timeout: the longest wait in seconds, after which queue.Empty is raised; None: no limit.
        """
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            if self._items:
                return self._items.popleft()
            left = -1.0 if end is None else max(end - time.monotonic(), 0.0)
            if not self._wake.acquire(timeout=left) and not self._items:
                raise Empty

    def empty(self) -> bool:
        """True if there is no item."""
        return not self._items
