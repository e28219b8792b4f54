"""Ranks as child processes, which start and end together, and whose output is read in threads."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO, Any

from fastsft.program.interrupts import Interrupts
from fastsft.ranks.store import HeldPort
from fastsft.reporting.status import CONSOLE_VARIABLE, EVENTS_VARIABLE
from fastsft.runtime.search_path import child_environment, python_command
from fastsft.runtime.threads import TimedQueue

_KEPT_LINES = 400
_CELL_COLUMNS = "92"
# Return codes after a requested end, which are no failure: -number if signal `number` has killed the rank,
# 128 + number if the rank has handled the signal.
_AFTER_A_SIGNAL = (-signal.SIGTERM, -signal.SIGINT, 128 + signal.SIGTERM, 128 + signal.SIGINT)
# Times after a rank's failure at which ranks that still run get SIGTERM, and then SIGKILL [s].
_SECONDS_TO_NOTICE, _SECONDS_TO_LEAVE = 15.0, 45.0


@dataclass
class Rank:
    """One rank's process, and the newest lines of its output."""

    number: int
    process: subprocess.Popen[bytes]
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=_KEPT_LINES))

    def end(self, number: int) -> None:
        """Send signal `number` to the process. Send SIGKILL also to the processes that it has started."""
        if self.process.poll() is not None:
            return
        if number == signal.SIGKILL:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)
        else:
            self.process.send_signal(number)


class Ranks:
    """A context manager for `count` ranks that run `job`.

    No process is left when the context ends. After an exception, the ranks first get time to save. environ:
    further environment variables. is_silent: True if ranks report progress only as events, and print no
    lines. interrupts: an entered Interrupts; the second interrupt kills the ranks.
    """

    def __init__(
        self,
        job: dict[str, Any],
        count: int,
        environ: Mapping[str, str],
        *,
        is_silent: bool,
        interrupts: Interrupts | None = None,
    ) -> None:
        self.ranks: list[Rank] = []
        self.was_ended = self._told = False
        self.failed: list[Rank] = []  # failed ranks in the order of their failures
        self._interrupts = interrupts or Interrupts()
        self._interrupts.at_second = lambda: self.end(signal.SIGKILL)
        self._messages: TimedQueue[tuple[str, Any]] = TimedQueue()
        self._readers: list[threading.Thread] = []
        self._first_failure: float | None = None
        self._port = HeldPort()
        events, sink = os.pipe()
        shared = _shared_variables(count, self._port.number, environ, is_silent)
        self._listen(lambda: self._hear_events(os.fdopen(events, "rb")))
        try:
            for number in range(count):
                self.ranks.append(self._start(number, job, shared, sink if number == 0 else None))
        except BaseException:
            self.__exit__()
            raise
        finally:
            os.close(sink)

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, kind: object = None, *_: object) -> None:
        if kind is not None:
            self._let_leave()
        self.end(signal.SIGKILL)
        for rank in self.ranks:
            rank.process.wait()
            if rank.process.stdin is not None:
                rank.process.stdin.close()
        for reader in self._readers:
            reader.join(timeout=5)
        self._port.close()

    def messages(self, heed: Callable[[], None] = lambda: None) -> Iterator[tuple[str, Any]]:
        """Yield rank 0's messages, ("line", text) or ("event", object), until all ranks have exited.

        heed: function that is called before each message, and ten times a second while there is no message.
        """
        while True:
            heed()
            is_over = self.watch()
            try:
                yield self._messages.get(timeout=0.1)
            except queue.Empty:
                heard = is_over and not any(reader.is_alive() for reader in self._readers)
                if heard and self._messages.empty():
                    return

    def end(self, number: int) -> None:
        """Send a signal to every rank that still runs."""
        self.was_ended = self.was_ended or any(rank.process.poll() is None for rank in self.ranks)
        for rank in self.ranks:
            rank.end(number)

    def _let_leave(self) -> None:
        """Send SIGTERM and wait for the ranks to save, until a time limit or another interrupt.

        Called after an exception in this process.
        """
        self.end(signal.SIGTERM)
        end, before = time.monotonic() + _SECONDS_TO_LEAVE, self._interrupts.count
        with suppress(KeyboardInterrupt):
            while any(rank.process.poll() is None for rank in self.ranks):
                if time.monotonic() > end or self._interrupts.count > before:
                    return
                time.sleep(0.05)

    def watch(self) -> bool:
        """Record failed ranks; end other ranks some time after a failure. Return True if all have exited."""
        for rank in self.ranks:
            status = rank.process.poll()
            if status and status not in _AFTER_A_SIGNAL and rank not in self.failed:
                self.failed.append(rank)
                self._first_failure = self._first_failure or time.monotonic()
        if self._first_failure is not None:
            passed = time.monotonic() - self._first_failure
            if passed > _SECONDS_TO_LEAVE:
                self.end(signal.SIGKILL)
            elif passed > _SECONDS_TO_NOTICE and not self._told:
                self._told = True
                self.end(signal.SIGTERM)
        return all(rank.process.poll() is not None for rank in self.ranks)

    def _start(self, number: int, job: dict[str, Any], shared: dict[str, str], sink: int | None) -> Rank:
        variables = {**shared, "RANK": str(number), "LOCAL_RANK": str(number)}
        if sink is not None:
            variables[EVENTS_VARIABLE] = str(sink)
        # In its own session, a rank does not get a notebook's interrupt directly, but only from this process.
        process = subprocess.Popen(
            python_command("fastsft.notebook.rank_program"),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env=variables, pass_fds=() if sink is None else (sink,), start_new_session=True,
        )  # fmt: skip
        rank = Rank(number, process)
        assert process.stdin is not None
        process.stdin.write((json.dumps(job) + "\n").encode())
        process.stdin.flush()
        self._listen(lambda: self._hear_lines(rank))
        return rank

    def _listen(self, target: Callable[[], None]) -> None:
        self._readers.append(threading.Thread(target=target, daemon=True))
        self._readers[-1].start()

    def _hear_lines(self, rank: Rank) -> None:
        assert rank.process.stdout is not None
        with rank.process.stdout as stream:
            for data in stream:
                text = data.decode("utf-8", "replace").rstrip("\n")
                rank.lines.append(text)
                if rank.number == 0:
                    self._messages.put(("line", text))

    def _hear_events(self, stream: IO[bytes]) -> None:
        with stream:
            for line in stream:
                self._messages.put(("event", json.loads(line)))


def _shared_variables(count: int, port: int, environ: Mapping[str, str], is_silent: bool) -> dict[str, str]:
    return {
        **child_environment(),
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "PYTHONUNBUFFERED": "1",
        **({CONSOLE_VARIABLE: "none", "COLUMNS": _CELL_COLUMNS} if is_silent else {}),
        **environ,
    }
