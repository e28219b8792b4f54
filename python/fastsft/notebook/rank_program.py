"""The program of a rank that `fastsft.launch` starts: `python -m fastsft.notebook.rank_program`.

The program reads its job as a line of JSON from standard input, which stays open as long as the parent
process lives.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from fastsft.program.main import run_script
from fastsft.runtime.terminal import outlet


def main() -> None:
    """Run the job, and exit with the same status as `python -m fastsft.train`."""
    job = json.loads(sys.stdin.buffer.readline())
    sys.stdout, sys.stderr = outlet(1, write_through=True), outlet(2, write_through=True)
    threading.Thread(target=_watch_parent, daemon=True).start()
    if job["script"] is None:
        run_script(lambda: _train(job["arguments"]), runs_scripts=False)
    else:
        run_script(lambda: _run(job["script"], job["arguments"]))


def _train(arguments: Sequence[str] | Mapping[str, Any] | None) -> None:
    from fastsft.train import train

    train(arguments)


def _run(script: str, argv: list[str]) -> None:
    sys.argv = [script, *argv]
    sys.path.insert(0, os.path.dirname(os.path.abspath(script)))
    runpy.run_path(script, run_name="__main__")


def _watch_parent() -> None:
    """Wait until the parent process ends, then send SIGTERM to this process, which saves a checkpoint."""
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
