"""Handles SIGTERM, SIGINT and SIGUSR1 in every phase of a run; exit statuses (docs/signals.md)."""

from __future__ import annotations

import math
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType, TracebackType

from fastsft.originals.functions import described
from fastsft.ranks import process_group as launcher
from fastsft.runtime.launch import launch, launch_or_alone
from fastsft.runtime.messages import tell, warn_once
from fastsft.runtime.terminal import say
from fastsft.runtime.threads import start_needed

EXIT_BASE = 128  # a run stopped by a signal has exit status 128 + its number, as in shells
_ANSWERED = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
_START_SECONDS = 2.0  # time until the process ends after a signal before the first step
_SAVE_SECONDS = 3.0  # time for the step and a save until the process ends after a second Ctrl-C
Handler = Callable[[int, FrameType | None], object] | int | None  # type of signal.signal's handlers
TRAINING = "the step under way is ended and a checkpoint saved, if all ranks answer; then the run leaves"
SAVING = "the model is saved to the end, then the run leaves"


class _Handlers:
    """The signal handlers that a run installs, and the handlers that they replace.

    A script's own handlers are not replaced, as in transformers; a warning says so.
    """

    def __init__(self) -> None:
        self._previous: dict[int, Handler] = {}

    def put(self, handler: Callable[[int, FrameType | None], None]) -> None:
        """Install `handler` for the signals of a run."""
        for number in _ANSWERED:
            previous = signal.getsignal(number)
            if previous is signal.SIG_IGN and number == signal.SIGINT:
                continue  # shells ignore SIGINT in background jobs, since Ctrl-C is for the foreground job
            in_c = previous in (None, signal.SIG_DFL) and _is_caught(number)
            if in_c or _is_of_script(previous):
                name = "in C" if in_c else described(previous)
                warn_once(
                    f"{signal.Signals(number).name}: the handler that the script has set ({name}) stays, and "
                    "the run does not save at this signal; in it, note the signal, and let a callback set "
                    "control.should_save and control.should_training_stop"
                )
            else:
                self._previous[number] = signal.signal(number, handler)

    def guards(self) -> set[SignalGuard]:
        """Return the enclosing guards, whose handlers were replaced by `put`."""
        owners = {getattr(handler, "__self__", None) for handler in self._previous.values()}
        return {owner for owner in owners if isinstance(owner, SignalGuard)}

    def take_back(self, handler: Callable[[int, FrameType | None], None]) -> None:
        """Restore the previous handlers, unless a script has set its own in the meantime."""
        for number, previous in self._previous.items():
            if signal.getsignal(number) == handler:
                signal.signal(number, previous)
        self._previous = {}


class _Fork(threading.local):
    """The signals that this thread had blocked before it began to fork."""

    mask: set[int] = set()  # noqa: RUF012  thread-local, and never changed in place


_fork = _Fork()


def _hold_signals() -> None:
    """Block signals before a fork, so that the child gets no signal before its handlers are set."""
    _fork.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _ANSWERED)


def _let_signals_through() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _fork.mask)


def _leave_to_parent() -> None:
    """Reset the handlers in a forked child (a callback's pool, a data loader's worker).

    The parent handles the run's signals. A signal to the whole process group (Ctrl-C, torchrun's
    SIGTERM) does not end the children, so that the current step can be finished. A SIGTERM that the parent
    sends does end them, since multiprocessing ends a pool this way.
    """
    for number in _ANSWERED:
        owner = getattr(signal.getsignal(number), "__self__", None)
        if isinstance(owner, SignalGuard | StartGuard):
            signal.signal(number, signal.SIG_DFL if number == signal.SIGTERM else signal.SIG_IGN)
            if number == signal.SIGTERM and "fastsft._C" in sys.modules:
                sys.modules["fastsft._C"].end_at_parents_sigterm()
    if SignalGuard.is_watched:
        signal.set_wakeup_fd(-1)
        SignalGuard.is_watched = False
    _let_signals_through()


os.register_at_fork(
    before=_hold_signals, after_in_parent=_let_signals_through, after_in_child=_leave_to_parent
)


def _is_caught(number: int) -> bool:
    """True if the process has a handler for the signal, in Python or in C (such as faulthandler)."""
    status = Path("/proc/self/status")
    lines = status.read_text(encoding="ascii", errors="replace").splitlines() if status.exists() else []
    caught = next((line.split()[1] for line in lines if line.startswith("SigCgt:")), "0")
    return bool(int(caught, 16) >> (number - 1) & 1)


def _is_of_script(handler: object) -> bool:
    """True if `handler` is a function that a script has set, and not a handler of Python or fastsft."""
    home = str(getattr(handler, "__module__", ""))
    return callable(handler) and handler is not signal.default_int_handler and not home.startswith("fastsft.")


class SignalGuard:
    """A context manager in which signals are recorded as pending instead of ending the process.

    A second Ctrl-C raises KeyboardInterrupt. Inside a StartGuard it is only recorded: the StartGuard ends the
    process three seconds later, whether a checkpoint is saved or not. answer: text about the effect of a
    signal, which the StartGuard prints at once. Guards nest: an inner guard takes over the pending signals of
    the outer guard, and raises its own pending signal again when it ends. Signals for which the script has
    set a handler are not recorded.
    """

    only_save = int(signal.SIGUSR1)  # the signal after which the run goes on
    is_watched = False  # True inside a StartGuard, which ends the process at a second Ctrl-C

    def __init__(self, answer: str = TRAINING) -> None:
        self.answer = answer
        # Two variables, because a handler may record one signal while the other is being reset.
        self._is_to_save, self._ends_by = False, 0
        self._handlers = _Handlers()

    def __enter__(self) -> SignalGuard:
        if threading.current_thread() is threading.main_thread():
            self._handlers.put(self._note)
            for outer in self._handlers.guards():
                self._is_to_save, outer._is_to_save = self._is_to_save or outer._is_to_save, False
                self._ends_by, outer._ends_by = self._ends_by or outer._ends_by, 0
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._handlers.take_back(self._note)
        if kind is None and self._ends_by:
            signal.raise_signal(self._ends_by)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self._ends_by == signal.SIGINT and not SignalGuard.is_watched:
            raise KeyboardInterrupt
        if number == self.only_save:
            self._is_to_save = True
        else:
            self._ends_by = number

    def answer_to(self, number: int) -> str:
        """Return the message about a signal's effect; empty for SIGUSR1, which only saves."""
        if number == self.only_save:
            return ""
        again = "; Ctrl-C once more leaves within seconds" if number == signal.SIGINT else ""
        return f"received {signal.Signals(number).name}: {self.answer}{again}"

    def finish(self) -> int:
        """Return and clear the pending signal of this rank, or 0. Called when the work is done."""
        noted = self._noted()
        self._is_to_save, self._ends_by = False, 0
        return noted

    def take(self) -> int:
        """Return the most urgent pending signal of all ranks, or 0. Collective."""
        noted = self._noted()
        if launch().world_size > 1:
            noted = _most_urgent(noted)
        if noted == self.only_save:
            self._is_to_save = False
        return noted

    def _noted(self) -> int:
        """Return the pending signal, or 0. Signals that end the run take precedence over SIGUSR1."""
        return self._ends_by or (self.only_save if self._is_to_save else 0)


def _most_urgent(noted: int) -> int:
    """Return the most urgent signal of all ranks. Collective.

    Signals that end the run take precedence over SIGUSR1.
    """
    import torch
    import torch.distributed as dist

    ends = 0 if noted == SignalGuard.only_save else noted
    flags = torch.tensor([ends, noted])
    with launcher.host_collective("agreement on signals"):
        dist.all_reduce(flags, op=dist.ReduceOp.MAX)
    return int(flags[0].item()) or int(flags[1].item())


class StartGuard:
    """A context manager for a whole program, in which a signal before the first step ends the program.

    A second thread reacts to signals even if the main thread is busy. It prints the effect of a signal at
    once, and ends the process if the main thread does not: two seconds after a signal before the first step,
    three seconds after a second Ctrl-C, and at once after a third Ctrl-C. SIGUSR1 before the first step only
    prints a message. is_said: False if the parent program prints the messages about Ctrl-C itself.
    """

    def __init__(self, *, is_said: bool = True) -> None:
        self._is_said = is_said
        self._received = 0  # the last signal before the first step; 0 if there was none
        self._handlers = _Handlers()
        self._read = self._write = self._previous_fd = -1
        self._interrupts = 0

    def __enter__(self) -> StartGuard:
        if threading.current_thread() is not threading.main_thread():
            return self
        self._handlers.put(self._leave)
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._previous_fd = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        thread = threading.Thread(target=self._watch, args=(self._read,), name="signals", daemon=True)
        start_needed(thread, "signals")
        SignalGuard.is_watched = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._write < 0:
            return
        SignalGuard.is_watched = False
        signal.set_wakeup_fd(self._previous_fd)
        self._handlers.take_back(self._leave)
        os.close(self._write)

    @property
    def leaving(self) -> int:
        """Signal because of which this process is ending, or 0. Other ranks may have ended by it, too."""
        return int(signal.SIGINT) if self._interrupts > 1 else self._received

    def _leave(self, number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        if number == SignalGuard.only_save:
            self._say(f"received {name} before the first step: there is nothing to save, the run goes on")
            return
        self._received = number
        self._say(f"received {name} before the first step: there is nothing to save, the run ends")
        raise SystemExit(EXIT_BASE + number)

    def _say(self, line: str) -> None:
        if launch_or_alone().rank == 0:
            say(line, to_stderr=True)

    def _watch(self, read: int) -> None:
        """React to signals in the second thread. Python writes each signal as a byte into the pipe `read`."""
        end, number = math.inf, 0
        while True:
            seconds = None if end == math.inf else max(end - time.monotonic(), 0.0)
            if not select.select([read], [], [], seconds)[0]:
                self._end(number)
            numbers = os.read(read, 64)
            if not numbers:
                break
            for number in numbers:
                end = min(end, time.monotonic() + self._answer(number))
        os.close(read)

    def _answer(self, number: int) -> float:
        """Print a signal's effect; return the seconds until the process must end, or infinity."""
        handler = signal.getsignal(number)
        guard = getattr(handler, "__self__", None)
        if handler != self._leave and not isinstance(guard, SignalGuard):
            return math.inf  # the script has set this handler
        self._interrupts += number == signal.SIGINT
        if handler == self._leave:
            return math.inf if number == SignalGuard.only_save else _START_SECONDS
        if number == signal.SIGINT and self._interrupts > 2:
            self._end(number)
        if number == signal.SIGINT and self._interrupts == 2:
            self._say_answer(f"leaves in {_SAVE_SECONDS:g} s, saved by then or not; Ctrl-C again: at once")
            return _SAVE_SECONDS
        if isinstance(guard, SignalGuard):
            self._say_answer(guard.answer_to(number))
        return math.inf

    def _say_answer(self, line: str) -> None:
        if line and self._is_said:  # not printed in a signal handler, which could interrupt another print
            tell(line)

    def _end(self, number: int) -> None:
        if number == signal.SIGINT and self._interrupts > 1:
            self._say("interrupted: not saved; the same command resumes from the newest checkpoint")
        os._exit(EXIT_BASE + number)
