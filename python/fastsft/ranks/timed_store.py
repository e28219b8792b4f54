"""A store whose calls end within a time limit, even if its server does not answer.

torch's TCPStore waits for its server without limit, even while it connects and after the timeout of a `wait`.
Meanwhile it blocks all other threads that use it. A frozen server process would therefore freeze its clients.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Generic, TypeVar

from fastsft.runtime.threads import TimedQueue, start_needed

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

_CLOSING_S, _GRACE_S = 0.5, 1.0

T = TypeVar("T")


class SilentStoreError(RuntimeError):
    """The server of a store has not answered within `limit_s` seconds.

    doing: the phrase that begins the message.
    """

    def __init__(self, limit_s: float, doing: str = "using the store") -> None:
        super().__init__(
            f"{doing}: the store of the ranks has not answered within {limit_s:g} seconds: the process that "
            "serves it (rank 0, or torchrun's) is stopped, starved or cut off; let it go on and make the "
            "call again on every rank, or end all ranks and start them again"
        )


class BoundedStore:
    """A store whose calls are made in order by one background thread, while callers wait for a limited time.

    connect: returns the store; called on the background thread. limit_s: seconds that a call may take, unless
    the call has a limit of its own. If a caller has given up waiting for a call, the call is still made once
    the server answers, before any later call, so that other ranks see its effect. Thread-safe. If `connect`
    raises RuntimeError, every call raises it.
    """

    def __init__(self, connect: Callable[[], Store], limit_s: float) -> None:
        self._limit_s, self._closed = limit_s, False
        self._jobs: TimedQueue[Callable[[], None] | None] = TimedQueue()
        self._beats: dict[str, Beat] = {}
        self._connected: Future[Store] = Future()
        # The thread is a daemon: the process must not wait at exit for a server that does not answer.
        self._thread = threading.Thread(target=self._work, args=(connect,), name="fastsft-store", daemon=True)
        start_needed(self._thread, "the store of the ranks")

    def open(self, limit_s: float) -> None:
        """Wait for the connection. RuntimeError if it is not open within `limit_s` seconds."""
        self._wait(self._connected, limit_s)

    def failed(self) -> bool:
        """True if connecting has failed, so that every call fails."""
        return self._connected.done() and self._connected.exception() is not None

    def run(self, work: Callable[[Store], T], limit_s: float | None = None) -> T:
        """Return `work(store)`. SilentStoreError if it has not ended within `limit_s` seconds."""
        return self._wait(self._put(work), self._limit_s if limit_s is None else limit_s)

    def later(self, work: Callable[[Store], object]) -> None:
        """Queue `work(store)` without waiting for it; its errors are ignored."""
        self._put(work)

    def set(self, key: str, value: str) -> None:
        self.run(lambda store: store.set(key, value))

    def get(self, key: str) -> bytes:
        return self.run(lambda store: bytes(store.get(key)))

    def check(self, keys: Sequence[str]) -> bool:
        return self.run(lambda store: bool(store.check(list(keys))))

    def add(self, key: str, amount: int) -> int:
        return self.run(lambda store: int(store.add(key, amount)))

    def delete_key(self, key: str) -> bool:
        return self.run(lambda store: bool(store.delete_key(key)))

    def num_keys(self) -> int:
        return self.run(lambda store: int(store.num_keys()))

    @contextlib.contextmanager
    def beating(self, key: str, seconds: float) -> Iterator[Beat]:
        """Add 1 to `key` every `seconds` seconds while the block runs, as a sign of life."""
        self._beats[key] = beat = Beat(seconds)
        self.later(lambda store: None)  # wakes the thread, which may wait without limit for a job
        try:
            yield beat
        finally:
            del self._beats[key]

    def close(self) -> None:
        """Close the connection after all queued calls; wait for them for at most half a second."""
        if not self._closed:
            self._closed = True
            self._jobs.put(None)
            self._thread.join(_CLOSING_S)

    def _put(self, work: Callable[[Store], T]) -> Future[T]:
        if self._closed:
            raise RuntimeError("this connection to the store has been closed")
        future: Future[T] = Future()
        self._jobs.put(_Job(self._connected, work, future))
        return future

    def _wait(self, future: Future[T], limit_s: float) -> T:
        try:
            # There are two waits because this process may have been suspended: then the first limit is over
            # before the store could answer.
            for seconds in (limit_s, _GRACE_S):
                with contextlib.suppress(TimeoutError):
                    return future.result(seconds)
            if future.done():
                return future.result()
            raise SilentStoreError(limit_s)
        finally:
            del future  # the error refers to this frame; this breaks the reference cycle

    def _work(self, connect: Callable[[], Store]) -> None:
        try:
            self._connected.set_result(connect())
        except BaseException as error:
            self._connected.set_exception(error)
        while (job := self._next()) is not None:
            job()
            del job
            for key, beat in list(self._beats.items()):
                if beat.due():
                    with contextlib.suppress(Exception):  # if the store has gone, the next call raises
                        self._connected.result().add(key, 1)

    def _next(self) -> Callable[[], None] | None:
        waits = [beat.wait() for beat in list(self._beats.values())]
        try:
            return self._jobs.get(timeout=min(waits) if waits else None)
        except queue.Empty:
            return lambda: None


class _Job(Generic[T]):
    """A call of the store, and the future on which its caller waits."""

    def __init__(self, connected: Future[Store], work: Callable[[Store], T], future: Future[T]) -> None:
        self._connected, self._work, self._future = connected, work, future

    def __call__(self) -> None:
        try:
            self._future.set_result(self._work(self._connected.result()))
        except BaseException as error:
            self._future.set_exception(error)
            del self  # the error refers to this frame; this breaks the reference cycle


class Beat:
    """When this process gave signs of life. seconds: the least time between two signs."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self._last, self._longest = seconds, time.monotonic(), 0.0

    def wait(self) -> float:
        return max(0.0, self._last + self.seconds - time.monotonic())

    def due(self) -> bool:
        if self.wait() > 0:
            return False
        self._longest, self._last = self.longest_gap(), time.monotonic()
        return True

    def longest_gap(self) -> float:
        """Return the longest time between two signs of life so far, in seconds."""
        return max(self._longest, time.monotonic() - self._last)
