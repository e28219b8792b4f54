"""Run processes that read untrusted files. They can import only the standard library and named packages.

Such a process limits its own memory and time before it reads any input. `Worker` starts the process and owns
its pipes. `Deadline` ends the wait for a process that takes too long for an answer.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import math
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

# -S: without the module `site`, installed packages are not on the search path, and neither .pth files nor
# sitecustomize run.
_OPTIONS = ("-P", "-s", "-S")
_START = "import runpy, sys; sys.path += sys.argv[1:]; runpy.run_module({module!r}, run_name='__main__')"
_SHORTEST_WAIT = 0.05  # least seconds between two readings of a worker's processor time
_AT_ONCE = 1 << 16  # bytes, a pipe's capacity


class Deadline:
    """The time limits for one answer; both begin at the first wait.

    computing: seconds of processor time. clock: seconds of wall-clock time. The work is limited by processor
    time, so that a busy machine leaves it as much time as an idle one; wall-clock time is the outer bound.
    """

    def __init__(self, process: subprocess.Popen[bytes], computing: float, clock: float) -> None:
        self._process, self._computing, self._clock = process, computing, clock
        self._began: float | None = None
        self._left, self._end = computing, math.inf

    def milliseconds(self) -> float:
        """Return the milliseconds for which the deadline surely lasts: a worker has only a single thread."""
        if self._began is None:
            self._began, self._end = self._computed(), time.monotonic() + self._clock
        return 1000 * max(min(self._left, self._end - time.monotonic()), _SHORTEST_WAIT)

    def is_over(self) -> bool:
        """Return True if the worker has used up its processor time, or its wall-clock time is over."""
        self._left = self._computing - (self._computed() - (self._began or 0.0))
        return self._left <= 0 or time.monotonic() >= self._end

    def _computed(self) -> float:
        return cpu_seconds(self._process) if self._computing < math.inf else 0.0


class Worker:
    """A running process and the pipes to it.

    module: the module of fastsft that the process runs. The process can import only `packages` and the
    standard library. variables: environment variables to add. stdin: a file that the process reads instead
    of the data from `send`. stderr: as in subprocess.Popen. ValueError if a package is not installed.
    """

    def __init__(
        self,
        module: str,
        packages: Sequence[str],
        variables: Mapping[str, str] | None = None,
        *,
        stdin: int | BinaryIO = subprocess.PIPE,
        stderr: int | BinaryIO | None = None,
    ) -> None:
        self.process = subprocess.Popen(
            isolated_command(module, packages), stdin=stdin, stdout=subprocess.PIPE, stderr=stderr, bufsize=0,
            env={**isolated_environment(), **(variables or {})},
        )  # fmt: skip
        self._owner = os.getpid()
        self._unsent, self._received = memoryview(b""), bytearray()
        if self.process.stdin is not None:
            os.set_blocking(self.process.stdin.fileno(), False)

    def send(self, data: bytes) -> None:
        """Queue `data` for the process. `receive` and `receive_line` write it while they wait."""
        self._unsent = memoryview(bytes(self._unsent) + data)

    def receive(self, size: int, deadline: Deadline | None = None) -> bytes:
        """Read `size` bytes, or fewer if the process's output ends. TimeoutError after the deadline."""
        while len(self._received) < size and self._exchange(deadline):
            pass
        return self._taken(size)

    def receive_line(self, deadline: Deadline | None = None) -> bytes | None:
        """Read a line, without its line break; None after the last line. TimeoutError after the deadline."""
        searched = 0
        while (end := self._received.find(b"\n", searched)) < 0:
            searched = len(self._received)
            if not self._exchange(deadline):
                return None
        return self._taken(end + 1)[:-1]

    def close(self) -> None:
        """Close the pipes and kill the process. A fork of the parent process only closes the pipes."""
        if self._owner == os.getpid():
            self.process.kill()
            self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()

    def __del__(self) -> None:
        if hasattr(self, "_received"):
            self.close()

    def _taken(self, size: int) -> bytes:
        with memoryview(self._received) as received:
            data = bytes(received[:size])
        del self._received[:size]
        return data

    def _exchange(self, deadline: Deadline | None) -> bool:
        """Read some output of the process, and send queued data meanwhile.

        Return False at the output's end.
        """
        assert self.process.stdout is not None
        output = self.process.stdout.fileno()
        while (deadline or self._unsent) and not self._is_readable(output, deadline):
            pass
        part = os.read(output, _AT_ONCE)
        self._received += part
        return bool(part)

    def _is_readable(self, output: int, deadline: Deadline | None) -> bool:
        """Wait until the process has written output or can take input; send queued data in the latter case.

        Return True if there is output.
        """
        poll = select.poll()
        poll.register(output, select.POLLIN)
        if self._unsent and self.process.stdin is not None:
            poll.register(self.process.stdin.fileno(), select.POLLOUT)
        ready = dict(poll.poll(None if deadline is None else deadline.milliseconds()))
        if ready.keys() - {output}:
            self._write_some()
        if not ready and deadline is not None and deadline.is_over():
            raise TimeoutError
        return output in ready

    def _write_some(self) -> None:
        assert self.process.stdin is not None
        try:
            written = os.write(self.process.stdin.fileno(), self._unsent[:_AT_ONCE])
        except BlockingIOError:
            return
        except OSError:  # the process has ended; the end of its output shows that to the caller
            written = len(self._unsent)
        self._unsent = self._unsent[written:]


def cpu_seconds(process: subprocess.Popen[bytes]) -> float:
    """Return the processor time in seconds that a process has used; infinite after its end."""
    try:
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return math.inf
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def isolated_command(module: str, packages: Sequence[str]) -> list[str]:
    """Return a command that runs a module of fastsft with a short module search path.

    The path has the standard library and the folders that contain fastsft and `packages`. The command must be
    run with `isolated_environment()`. If a package is not installed, ValueError names it.
    """
    own = str(Path(__file__).resolve().parents[2])
    folders = [own, *(package_folder(name) for name in packages)]
    return [sys.executable, *_OPTIONS, "-c", _START.format(module=module), *dict.fromkeys(folders)]


def isolated_environment() -> dict[str, str]:
    """Return the environment without PYTHONPATH and other variables that make Python import or run code."""
    hidden = ("PYTHONPATH", "PYTHONSTARTUP", "PYTHONINSPECT", "PYTHONBREAKPOINT", "PYTHONWARNINGS")
    return {name: value for name, value in os.environ.items() if name not in hidden}


def package_folder(name: str) -> str:
    """Return the folder that contains an installed package.

    The working directory is searched only if PYTHONPATH names it. ValueError if the package is not installed.
    """
    loaded = getattr(sys.modules.get(name), "__file__", None)
    if loaded is not None:
        return _folder_of(loaded)
    here = os.path.realpath(os.curdir)
    named = {os.path.realpath(entry) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry}
    paths = [path for path in sys.path if os.path.realpath(path or os.curdir) != here or here in named]
    spec = importlib.machinery.PathFinder.find_spec(name, paths)
    if spec is None or spec.origin is None:  # an editable installation may have only an import hook
        spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None or (_folder_of(spec.origin) == here and here not in named):
        raise ValueError(f"the package {name} is not installed; pip install {name}")
    return _folder_of(spec.origin)


def _folder_of(origin: str) -> str:
    path = Path(origin).resolve()
    return str(path.parents[1] if path.stem == "__init__" else path.parent)
