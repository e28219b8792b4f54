"""Ctrl-C and a notebook's stop button while ranks run: counted, and never raised inside other code.

A KeyboardInterrupt can come between taking a lock of Python's library (that of queue.Queue, of
subprocess.Popen) and the block that gives it back: whoever takes the lock next waits for ever.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType


class Interrupts:
    """While entered, in the main thread, SIGINT only adds to `count`; nothing is raised.

    `at_second` is called by the second one at once, whatever the main thread does; a third raises
    KeyboardInterrupt. In another thread, and where SIGINT is ignored, nothing is changed.
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
