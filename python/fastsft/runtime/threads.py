"""Threads that Python code needs: where the system gives none, the message says what to do."""

from __future__ import annotations

import threading
import time
from collections import deque
from queue import Empty
from typing import Generic, TypeVar


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


T = TypeVar("T")


class TimedQueue(Generic[T]):
    """First in, first out; any thread puts, one takes.

    In place of queue.SimpleQueue, whose `get(timeout=...)` waits for ever in CPython 3.11 when its time
    is over before it has begun to wait (a busy machine, a short limit); and of queue.Queue, whose lock an
    interrupt can leave taken.
    """

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._wake = threading.Lock()  # free: something was put since the reader looked
        self._wake.acquire()

    def put(self, item: T) -> None:
        """Add `item`; never waits."""
        self._items.append(item)
        try:
            self._wake.release()
        except RuntimeError:  # the reader has not looked since the last one
            return

    def get(self, timeout: float | None = None) -> T:
        """The first item. Empty after `timeout` seconds without one; None waits for ever."""
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            if self._items:
                return self._items.popleft()
            left = -1.0 if end is None else max(end - time.monotonic(), 0.0)
            if not self._wake.acquire(timeout=left) and not self._items:
                raise Empty

    def empty(self) -> bool:
        """True if nothing waits to be taken."""
        return not self._items
