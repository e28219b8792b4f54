"""Commands of fastsft in processes of limited memory and time, forked from one that has imported everything.

Reads a line from stdin for each list of {"words", "folder"}, the first word "train" or a command of the
command line. Answers on stdout with a line of [status, text] for each; the status is null for one that had to
be killed.
"""

from __future__ import annotations

import atexit
import functools
import gc
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

MEMORY = 2 << 30  # bytes of address space beyond those of the imports
CPU_SECONDS = 30
WALL_SECONDS = 150.0  # a wait without end; machines that run tests are slow


def run_commands(
    orders: list[tuple[list[str], Path]], seconds: float = WALL_SECONDS
) -> list[tuple[int | None, str]]:
    """Of each command its status and all that it printed, both streams; `seconds` is what each may take."""
    given = [{"words": words, "folder": str(folder), "seconds": seconds} for words, folder in orders]
    process = _server()
    assert process.stdin and process.stdout
    print(json.dumps({"orders": given, "environment": _environment()}), file=process.stdin, flush=True)
    line = process.stdout.readline()
    assert line, "the process that forks commands is gone"
    return [(status, text) for status, text in json.loads(line)]


def _environment() -> dict[str, str]:
    import fastsft

    paths = os.pathsep.join([str(Path(fastsft.__file__).parents[1]), str(Path(__file__).parent)])
    hidden = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"}
    env = {name: value for name, value in os.environ.items() if name not in hidden}
    return {**env, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}


@functools.cache
def _server() -> subprocess.Popen[str]:
    """One for the session."""
    process = subprocess.Popen(
        [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env=_environment(),
    )  # fmt: skip
    atexit.register(process.communicate)
    return process


def limit() -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    seconds = int(time.process_time()) + CPU_SECONDS
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def run_forked(order: dict[str, Any], file: int) -> None:
    """In the child."""
    os.setsid()
    for stream in (1, 2):
        os.dup2(file, stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ.clear()
    os.environ.update(order["environment"])
    os.chdir(order["folder"])
    name, *words = order["words"]
    limit()
    if name == "train":
        import fastsft.train
        from fastsft.program.main import run_script

        sys.argv = ["train.py", *words]
        run_script(fastsft.train.train)
        sys.exit(0)
    from fastsft.cli import main as cli

    sys.exit(cli.main([name, *words]))


def run(order: dict[str, Any]) -> tuple[int | None, str]:
    with tempfile.TemporaryFile() as said:
        pid = os.fork()
        if pid == 0:
            try:
                run_forked(order, said.fileno())
            except SystemExit as error:
                os._exit(error.code if isinstance(error.code, int) else 1)
            except BaseException:
                import traceback

                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        status = wait(pid, order["seconds"])
        said.seek(0)
        return status, said.read()[-20_000:].decode(errors="replace")


def wait(pid: int, seconds: float) -> int | None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


def main() -> None:
    import torch

    import fastsft.cli.doctor
    import fastsft.cli.inspect
    import fastsft.cli.plan
    import fastsft.train  # noqa: F401
    from read_sources import read_sources

    torch.set_num_threads(1)
    read_sources()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    gc.freeze()  # a command that ends would look at all that was imported
    for line in sys.stdin:
        given = json.loads(line)
        found = [run({**order, "environment": given["environment"]}) for order in given["orders"]]
        print(json.dumps(found), file=answers, flush=True)


if __name__ == "__main__":
    main()
