"""A process that reads hostile data with a limit of address space; what it said, and its peak memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

_PROGRAM = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (4500 << 20, 4500 << 20))
from fastsft import _C
from fastsft.sources.data_files import DataFile, open_input
from fastsft.tokenizer.byte_tokenizer import byte_tokenizer
from fastsft.data.chat.labelling import LabelSettings, make_labeller
seconds = int(resource.getrusage(resource.RUSAGE_SELF).ru_utime) + 30
resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
settings = LabelSettings(mask_policy="spans", template="vicuna_v1.1")
labeller = make_labeller(byte_tokenizer(["</s>"]), 1 << 29, -1, settings)
start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    print("records", _C.label_inputs([open_input(DataFile(sys.argv[1]))], labeller).report.num_records)
except ValueError as error:
    print("ValueError:", error)
peaks = [resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
print(start, *peaks)
"""


class Outcome(NamedTuple):
    """What it said; KiB before it read, at its peak, and at the peak of its children."""

    said: str
    start: int
    peak: int
    children: int


def label_bounded(path: Path) -> Outcome:
    """Label the file with a limit of 4500 MiB of address space and 30 s of processor time."""
    words = [sys.executable, "-c", _PROGRAM, str(path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, (done.returncode, done.stderr[-2000:])
    *said, sizes = done.stdout.splitlines()
    return Outcome("\n".join(said), *map(int, sizes.split()))
