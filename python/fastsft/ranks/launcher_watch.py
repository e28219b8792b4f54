"""A watch over torchrun: if a rank's launcher has ended, the rank prints a message and stops."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator

from fastsft.runtime.terminal import say
from fastsft.runtime.threads import start_needed

_PAUSE_S = 1.0
_OF_TORCHRUN = "TORCHELASTIC_RUN_ID"
_STARTED = os.getpid(), os.getppid()  # read when fastsft is imported, as early as possible


def launcher_is_gone() -> bool:
    """True if torchrun started this process and has ended since; its store may have ended with it."""
    pid, parent = _STARTED
    return _OF_TORCHRUN in os.environ and os.getpid() == pid and os.getppid() != parent


@contextlib.contextmanager
def launcher_watch() -> Iterator[None]:
    """Send this process SIGTERM if torchrun, which started it, ends while the block runs.

    Otherwise nothing would end the ranks, and they would wait for each other until a collective times out.
    Ranks that another program started are not watched: a shell may start ranks in the background and exit.
    """
    if _OF_TORCHRUN not in os.environ:
        yield
        return
    ended = threading.Event()
    thread = threading.Thread(target=_watch, args=(ended,), name="fastsft-launcher", daemon=True)
    start_needed(thread, "the watch over the launcher")
    try:
        yield
    finally:
        ended.set()


def _watch(ended: threading.Event) -> None:
    while not ended.wait(_PAUSE_S):
        if launcher_is_gone():
            say(
                f"rank {os.environ.get('RANK')}: the launcher, process {_STARTED[1]}, is gone: this rank "
                "leaves, as after SIGTERM; start the same command again",
                to_stderr=True,
            )
            os.kill(os.getpid(), signal.SIGTERM)
            return
