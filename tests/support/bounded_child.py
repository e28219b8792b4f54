"""A process that reads hostile data with a limit of address space; what it said, and its peak memory."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from forked_programs import Programs

_PROGRAM = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (4500 << 20, 4500 << 20))
from fastsft import _C
from fastsft.sources.data_files import DataFile
from fastsft.sources.readers import open_input
from fastsft.tokenizer.json_tokenizer import byte_tokenizer
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


_MODULES = (
    "fastsft._C", "fastsft.sources.data_files", "fastsft.tokenizer.json_tokenizer",
    "fastsft.data.chat.labelling",
)  # fmt: skip


class Outcome(NamedTuple):
    """What it said; KiB before it read, at its peak, and at the peak of its children."""

    said: str
    start: int
    peak: int
    children: int


def label_bounded(path: Path) -> Outcome:
    """Label the file with a limit of 4500 MiB of address space and 30 s of processor time."""
    program = Programs.of(*_MODULES).start(_PROGRAM, str(path))
    output, errors = program.communicate(timeout=900)
    assert program.returncode == 0, (program.returncode, errors[-2000:])
    *said, sizes = output.splitlines()
    return Outcome("\n".join(said), *map(int, sizes.split()))
