"""Ctrl-C while a program imports: some libraries swallow a KeyboardInterrupt, and stay half loaded."""

from __future__ import annotations

import signal
import threading
from types import FrameType


def end_at_interrupt() -> None:
    """From now on SIGINT ends the process, as its default does; nothing where a handler was set already."""
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def raise_at_interrupt() -> None:
    """After `end_at_interrupt` SIGINT raises KeyboardInterrupt again, as in any Python program."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(number: int, frame: FrameType | None) -> None:
    # OpenBLAS raises SIGINT, too, where it gets no thread; about that the run has a line of its own.
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
