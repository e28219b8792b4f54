"""Small programs in processes forked from one that has imported what they need.

Programs is what tests use, Program its processes, with the names of subprocess.Popen. The process that forks
(this file, run as a script) has no threads, as rank_program.py, and ends with the test session.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import IO, Any, NoReturn


class Program:
    """A forked process; its three streams are pipes of text."""

    def __init__(self, programs: Programs, pid: int, pipes: Sequence[int]) -> None:
        self._programs, self.pid = programs, pid
        self.returncode: int | None = None
        self.stdin: IO[str] = os.fdopen(pipes[0], "w")
        self.stdout: IO[str] = os.fdopen(pipes[1])
        self.stderr: IO[str] = os.fdopen(pipes[2])

    def communicate(self, text: str = "", timeout: float = 120.0) -> tuple[str, str]:
        """What it prints until it ends, on both streams; TimeoutError when it does not."""
        if not self.stdin.closed:
            with contextlib.suppress(BrokenPipeError):
                self.stdin.write(text)
                self.stdin.close()
        found = ["", ""]

        def read(place: int, stream: IO[str]) -> None:
            if not stream.closed:
                found[place] = stream.read()
                stream.close()

        readers = [
            threading.Thread(target=read, args=each, daemon=True)
            for each in enumerate((self.stdout, self.stderr))
        ]
        for reader in readers:
            reader.start()
        self.wait(timeout)
        for reader in readers:
            reader.join(timeout)
        return found[0], found[1]

    def wait(self, timeout: float = 120.0) -> int:
        """Its status as subprocess gives it: -9 for SIGKILL."""
        if self.returncode is None:
            file = os.pidfd_open(self.pid)
            try:
                if not select.select([file], [], [], timeout)[0]:
                    raise TimeoutError(f"process {self.pid} has not ended for {timeout:g} seconds")
            finally:
                os.close(file)
            self.returncode = self._programs.ask({"wait": self.pid})
        return self.returncode

    def poll(self) -> int | None:
        """Its status; None while it runs."""
        with contextlib.suppress(TimeoutError):
            self.wait(0)
        return self.returncode

    def kill(self) -> None:
        if self.returncode is None:
            os.kill(self.pid, 9)
            self.wait()


class Programs:
    """The process that has imported `modules`, and forks."""

    def __init__(self, *modules: str) -> None:
        self._socket, theirs = socket.socketpair()
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(theirs.fileno()), *modules],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            pass_fds=[theirs.fileno()],
        )  # fmt: skip
        theirs.close()
        atexit.register(self.close)

    @staticmethod
    @functools.cache
    def of(*modules: str) -> Programs:
        """One for the session."""
        return Programs(*modules)

    def start(self, code: str, *words: str, environment: Mapping[str, str] | None = None) -> Program:
        """Run `code` with sys.argv[1:] of `words`."""
        ends = [os.pipe() for _ in range(3)]
        ours = [ends[0][1], ends[1][0], ends[2][0]]
        theirs = [ends[0][0], ends[1][1], ends[2][1]]
        given = {"code": code, "words": words, "folder": os.getcwd()}
        pid = self.ask({**given, "environment": dict(environment or os.environ)}, theirs)
        for file in theirs:
            os.close(file)
        return Program(self, pid, ours)

    def ask(self, order: dict[str, Any], files: Sequence[int] = ()) -> int:
        """The answer to an order, which comes with open files."""
        text = json.dumps(order).encode()
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))] if files else []
        self._socket.sendmsg([len(text).to_bytes(4, "big")], rights)
        self._socket.sendall(text)
        answer = self._socket.recv(4, socket.MSG_WAITALL)
        assert len(answer) == 4, "the process that forks programs is gone"
        return int.from_bytes(answer, "big", signed=True)

    def close(self) -> None:
        self._socket.close()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(timeout=30)


def leave(code: Any) -> NoReturn:
    """As the interpreter ends, but for the destruction of all that was imported, which costs as much as a
    small run. What goes wrong in it, runs show that e2e/command_line.py starts, of one and of several ranks.
    """
    if isinstance(code, str):
        print(code, file=sys.stderr)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


def run_program(order: dict[str, Any], files: list[int]) -> NoReturn:
    """In a forked child."""
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(order["environment"])
    os.chdir(order["folder"])
    sys.argv = ["program.py", *order["words"]]
    try:
        exec(compile(order["code"], "program.py", "exec"), {"__name__": "__main__"})
    except SystemExit as error:
        leave(error.code)
    except BaseException:
        import traceback

        traceback.print_exc()
        leave(1)
    leave(0)


def main() -> None:
    orders = socket.socket(fileno=int(sys.argv[1]))
    for name in sys.argv[2:]:
        importlib.import_module(name)
    gc.freeze()
    while True:
        size, files, _, _ = socket.recv_fds(orders, 4, 3)
        if not size:
            break
        order = json.loads(orders.recv(int.from_bytes(size, "big"), socket.MSG_WAITALL))
        if "wait" in order:
            answer = os.waitstatus_to_exitcode(os.waitpid(order["wait"], 0)[1])
        else:
            answer = os.fork()
            if answer == 0:
                orders.close()
                run_program(order, files)
        for file in files:
            os.close(file)
        orders.sendall(answer.to_bytes(4, "big", signed=True))


if __name__ == "__main__":
    main()
