"""Signals to processes that a run has forked, such as a callback's pool or workers that prepare data."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from fastsft.trainer import signals
from fastsft.trainer.signals import SignalGuard

PROGRAM = """
import multiprocessing, time
from fastsft.program.main import run_script

def main():
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
    child.start()
    time.sleep(0.3)
    child.terminate()
    child.join()
    time.sleep(3)  # longer than a signal that came while starting leaves
    print("child", child.exitcode, flush=True)

run_script(main)
"""
GROUP = """
import multiprocessing, os, subprocess, sys, time
from fastsft import _C
from fastsft.trainer.signals import SignalGuard

def work(_):
    time.sleep(1)
    return 1

assert _C.with_cuda in (True, False)  # the core is loaded
with SignalGuard() as guard, multiprocessing.get_context("fork").Pool(2) as pool:
    found = pool.map_async(work, [0, 0])
    time.sleep(0.3)
    subprocess.run([sys.executable, "-c", f"import os; os.killpg({os.getpgid(0)}, {sys.argv[1]})"])
    print(found.get(20), guard.finish())
"""
FORKS = multiprocessing.get_context("fork")


@pytest.fixture
def guard() -> Iterator[SignalGuard]:
    with SignalGuard() as entered:
        yield entered


def test_a_childs_signal_is_not_the_programs() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "child -15\n", "")


def test_pools_of_a_callback_end(guard: SignalGuard) -> None:
    for _ in range(3):
        with FORKS.Pool(2) as pool:
            assert pool.map(abs, [-1, 2]) == [1, 2]
    child = FORKS.Process(target=time.sleep, args=(60,))
    child.start()
    assert child.pid is not None
    os.kill(child.pid, signal.SIGUSR1)  # to save: a child has nothing to save, and goes on
    time.sleep(0.2)
    assert child.is_alive()
    child.terminate()
    child.join(20)
    assert child.exitcode == -signal.SIGTERM and guard.finish() == 0


@pytest.mark.variants("[15]")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_group_leaves_children_at_work(number: int) -> None:
    """After Ctrl-C or torchrun's SIGTERM, a callback still gets its children's results, and the step ends."""
    done = subprocess.run(
        [sys.executable, "-c", GROUP, str(int(number))], capture_output=True, text=True, timeout=120,
        start_new_session=True,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, f"[1, 1] {int(number)}\n"), done.stderr


def test_a_child_that_is_ended_at_once_ends(guard: SignalGuard) -> None:
    """A SIGTERM that arrives before the child has set its handlers is blocked, and ends the child then."""
    for _ in range(20):
        child = FORKS.Process(target=time.sleep, args=(60,))
        child.start()
        child.terminate()
        child.join(20)
        assert child.exitcode == -signal.SIGTERM
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set()


def test_a_signal_to_leave_is_kept_while_one_to_save_is_agreed(
    guard: SignalGuard, monkeypatch: pytest.MonkeyPatch
) -> None:
    def agreed(noted: int) -> int:
        signal.raise_signal(signal.SIGTERM)
        return noted

    monkeypatch.setattr(signals, "launch", lambda: SimpleNamespace(world_size=2))
    monkeypatch.setattr(signals, "_most_urgent", agreed)
    signal.raise_signal(signal.SIGUSR1)
    assert guard.take() == signal.SIGUSR1
    monkeypatch.setattr(signals, "_most_urgent", lambda noted: noted)
    assert guard.take() == signal.SIGTERM == guard.finish()


def test_an_interrupt_that_is_ignored_stays_ignored() -> None:
    """A shell starts background jobs with SIGINT ignored, as Ctrl-C is meant for the foreground."""
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with SignalGuard() as guard:
            signal.raise_signal(signal.SIGINT)
            assert guard.take() == 0
            signal.raise_signal(signal.SIGUSR1)
            assert guard.finish() == signal.SIGUSR1
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, previous)
