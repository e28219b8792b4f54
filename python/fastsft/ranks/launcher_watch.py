"""A watch over torchrun: if a rank's launcher has ended, the rank prints a message and stops."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator, Mapping

from fastsft.runtime.terminal import say
from fastsft.runtime.threads import start_needed

_PAUSE_S = 1.0
_OF_TORCHRUN = "TORCHELASTIC_RUN_ID"
_STARTED = os.getpid(), os.getppid()  # read when fastsft is imported, as early as possible


def launcher_is_gone(environ: Mapping[str, str] | None = None) -> bool:
    """True if torchrun started this process and has ended since; its store may have ended with it."""
    env = os.environ if environ is None else environ
    pid, parent = _STARTED
    return _OF_TORCHRUN in env and os.getpid() == pid and os.getppid() != parent


@contextlib.contextmanager
def launcher_watch(environ: Mapping[str, str] | None = None) -> Iterator[None]:
    """Send this process SIGTERM if torchrun, which started it, ends while the block runs.

    Otherwise nothing would end the ranks, and they would wait for each other until a collective times out.
    Ranks that another program started are not watched: a shell may start ranks in the background and exit.
    """
    env = os.environ if environ is None else environ
    if _OF_TORCHRUN not in env:
        yield
        return
    ended = threading.Event()
    thread = threading.Thread(target=_watch, args=(env, ended), name="fastsft-launcher", daemon=True)
    start_needed(thread, "the watch over the launcher")
    try:
        yield
    finally:
        ended.set()


def _watch(env: Mapping[str, str], ended: threading.Event) -> None:
    while not ended.wait(_PAUSE_S):
        if launcher_is_gone(env):
            say(
                f"rank {env.get('RANK')}: the launcher, process {_STARTED[1]}, is gone: this rank leaves, as "
                "after SIGTERM; start the same command again",
                to_stderr=True,
            )
            os.kill(os.getpid(), signal.SIGTERM)
            return
