"""Counts SIGINT (Ctrl-C or a notebook's stop button) while ranks run, instead of KeyboardInterrupt.

A KeyboardInterrupt could come just after a library such as queue or subprocess has acquired a lock, before
the block that releases the lock. The next thread that acquires the lock would then wait forever.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType


class Interrupts:
    """A context manager that counts SIGINTs in `count` instead of raising KeyboardInterrupt.

    The second SIGINT calls `at_second` at once, the third raises KeyboardInterrupt. Outside of the main
    thread, and if SIGINT is ignored, the context manager has no effect.
    """

    def __init__(self) -> None:
        self.count = 0
        self.at_second: Callable[[], None] = lambda: None
        self._previous: Callable[[int, FrameType | None], object] | int | None = None

    def __enter__(self) -> Interrupts:
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            self._previous = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        if self.count == 2:
            self.at_second()
        elif self.count > 2:
            raise KeyboardInterrupt
