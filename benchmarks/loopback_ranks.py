"""A program on several ranks of this machine, which meet on loopback."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from fastsft.ranks.store import HeldPort

ROOT = Path(__file__).parents[1]
PATHS = ("python", "tests/support", "benchmarks")


def run_program(words: Sequence[str], ranks: int) -> list[str]:
    """What each rank of `python WORDS...` prints, a thread each; RuntimeError when one fails."""
    with closing(HeldPort()) as port:
        common = {
            **os.environ, "PYTHONPATH": ":".join(str(ROOT / path) for path in PATHS),
            "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port.number), "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        processes = [
            subprocess.Popen(
                [sys.executable, *words], env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdout=subprocess.PIPE, text=True,
            )
            for rank in range(ranks)
        ]  # fmt: skip
        outputs = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        raise RuntimeError(f"{words[0]}: statuses {[process.returncode for process in processes]}: {outputs}")
    return outputs
