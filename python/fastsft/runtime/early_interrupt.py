"""Ctrl-C while a program imports: some libraries swallow a KeyboardInterrupt, and stay half loaded."""

from __future__ import annotations

import signal
import threading

_is_set = False


def end_at_interrupt() -> None:
    """From now on SIGINT ends the process, as its default does; nothing where a handler was set already."""
    global _is_set
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        _is_set = True


def raise_at_interrupt() -> None:
    """After `end_at_interrupt` SIGINT raises KeyboardInterrupt again, as in any Python program."""
    global _is_set
    if _is_set and signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    _is_set = False
