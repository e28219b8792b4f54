"""The queue with a time limit: order, wake-ups, and limits that are over at once."""

from __future__ import annotations

import threading
import time
from queue import Empty

import pytest

from fastsft.runtime.threads import TimedQueue


@pytest.mark.timeout(60)
@pytest.mark.parametrize("seconds", [0.0, 1e-9, 1e-6, 1e-4])
def test_a_limit_that_is_over_at_once_ends(seconds: float) -> None:
    """CPython 3.11's SimpleQueue waits for ever at one of a few thousand such calls."""
    for _ in range(20_000 if seconds < 1e-4 else 500):
        with pytest.raises(Empty):
            TimedQueue[int]().get(timeout=seconds)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("limit", [None, 5.0, 1e-5])
def test_everything_comes_in_order(limit: float | None) -> None:
    queue: TimedQueue[int | None] = TimedQueue()
    numbers = range(20_000)

    def put() -> None:
        for number in numbers:
            queue.put(number)
        queue.put(None)

    writer = threading.Thread(target=put)
    writer.start()
    found = []
    while True:
        try:
            item = queue.get(timeout=limit)
        except Empty:
            continue
        if item is None:
            break
        found.append(item)
    writer.join()
    assert found == list(numbers) and queue.empty()


def test_a_reader_is_woken() -> None:
    queue: TimedQueue[str] = TimedQueue()
    threading.Timer(0.1, queue.put, ("x",)).start()
    started = time.monotonic()
    assert queue.get(timeout=30.0) == "x" and time.monotonic() - started < 20
    with pytest.raises(Empty):
        queue.get(timeout=0.01)
