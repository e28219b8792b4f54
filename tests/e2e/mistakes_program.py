"""`python -m fastsft.train` with many command lines, each in a fork of one process that has imported it.

usage: python mistakes_program.py COMMANDS RESULTS   (JSON: a list of flag lists; of [status, stdout, stderr])

A start is mostly imports; what a command does after them is the same here. One that does not end is killed.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import traceback
from pathlib import Path

import fastsft.train
import fastsft.trainer  # what train() imports when it begins
from fastsft.program.main import run_script

SECONDS = 60  # of one command, none of which waits for anything


def forked(flags: list[str]) -> tuple[int, str, str]:
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        child = os.fork()
        if child == 0:
            _become(flags, out.fileno(), err.fileno())
        _, status = os.waitpid(child, 0)
        out.seek(0)
        err.seek(0)
        return os.waitstatus_to_exitcode(status), out.read(), err.read()


def _become(flags: list[str], out: int, err: int) -> None:
    status = 0
    signal.alarm(SECONDS)  # nothing here catches SIGALRM
    os.dup2(out, 1)
    os.dup2(err, 2)
    sys.argv = ["train.py", *flags]
    try:
        run_script(fastsft.train.train)
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    commands, results = map(Path, sys.argv[1:])
    results.write_text(json.dumps([forked(flags) for flags in json.loads(commands.read_text())]))
