"""An interrupt of `fastsft.launch` at the worst moment: while a lock of Python's library is held."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import fastsft
from fastsft.notebook import launch as launching
from fastsft.program.interrupts import Interrupts
from fastsft.program.rank_processes import Ranks

SCRIPT = "import time\nfor number in range(6000):\n    print(number, flush=True)\n    time.sleep(0.01)\n"
# Popen.poll takes a lock, and gives it back in a block that begins one instruction later.
DRIVER = """
import os, signal, sys
import fastsft
from fastsft.program import rank_processes as ranks

class Lock:
    def __init__(self, lock):
        self.lock, self.calls = lock, 0
    def acquire(self, *given):
        taken = self.lock.acquire(*given)
        self.calls += 1
        if self.calls == 20:
            print("interrupting", flush=True)
            os.kill(os.getpid(), signal.SIGINT)
        return taken
    def release(self):
        self.lock.release()

signal.signal(signal.SIGINT, signal.default_int_handler)
started = ranks.Ranks._start
def start(self, number, *given):
    rank = started(self, number, *given)
    if number == 0:
        rank.process._waitpid_lock = Lock(rank.process._waitpid_lock)
    return rank
ranks.Ranks._start = start
fastsft.launch([], script=sys.argv[1], num_processes=2, plot=False)
"""


def test_an_interrupt_while_a_lock_is_held_ends_the_run(tmp_path: Path) -> None:
    """Raised there, the lock would be held for ever, and the rank would never be seen to have left."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    env = {**os.environ, "PYTHONPATH": str(Path(fastsft.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, str(script)], env=env, capture_output=True, text=True, timeout=90
    )
    assert "interrupting" in done.stdout and "the ranks save a checkpoint and leave" in done.stdout
    assert done.stderr.splitlines()[-1].startswith("KeyboardInterrupt: after step")


def test_interrupts_are_counted_and_the_third_is_raised() -> None:
    before, told = signal.getsignal(signal.SIGINT), []
    with Interrupts() as interrupts:
        interrupts.at_second = lambda: told.append(interrupts.count)
        for _ in range(2):
            signal.raise_signal(signal.SIGINT)
        assert interrupts.count == 2 and told == [2]
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_another_thread_leaves_the_handler_alone() -> None:
    before, seen = signal.getsignal(signal.SIGINT), []

    def enter() -> None:
        with Interrupts():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert seen == [before]


def test_ranks_that_do_not_leave_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(launching, "_SECONDS_TO_LEAVE", 0.3)
    script = tmp_path / "deaf.py"
    script.write_text(
        "import signal, time\nsignal.signal(15, signal.SIG_IGN)\nprint('on', flush=True)\n" + SCRIPT
    )
    interrupted: list[float] = []
    kept = Ranks.messages

    def messages(self: Ranks, heed: Any) -> Any:
        for message in kept(self, heed):
            yield message
            said = capfd.readouterr().out
            if message[1] == "3" and not interrupted:
                interrupted.append(time.monotonic())
                signal.raise_signal(signal.SIGINT)
            if "waiting for rank 0 to save and leave; once more ends them at once" in said:
                signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Ranks, "messages", messages)
    with pytest.raises(KeyboardInterrupt):
        launching.launch([], script=script, num_processes=1, plot=False)
    assert interrupted
