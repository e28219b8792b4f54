"""Runs a script on several ranks that share the seconds of its imports.

Usage: forked_script.py RANKS PORT SCRIPT WORDS...; the status is 0 when all ranks have ended well.
"""

from __future__ import annotations

import os
import runpy
import sys
import traceback

import torch
import transformers  # noqa: F401
from fastchat.model import model_adapter  # noqa: F401

from fastsft import _C  # noqa: F401


def run_rank(rank: int, ranks: int, port: str, words: list[str]) -> None:
    if ranks > 1:
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
        os.environ |= {name: str(value) for name, value in place.items()}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    torch.set_num_threads(1)
    sys.argv = words
    runpy.run_path(words[0], run_name="__main__")


def main() -> None:
    ranks, port, words = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
    pids = []
    for rank in range(ranks):
        if (pid := os.fork()) == 0:
            status = 1
            try:
                run_rank(rank, ranks, port, words)
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(status)
        pids.append(pid)
    sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 0 for pid in pids))


if __name__ == "__main__":
    main()
