"""Leave out each wait of the product in turn, and print what notices: a table for docs/gpu.md.

usage: python -m fake_device.mutations [CASE ...]   (in tests; minutes each)

CASE: of test_engine_steps.STRATEGIES; default: all.

A wait is a place in the extension that calls cudaStreamWaitEvent, cudaEventSynchronize, cudaStreamSynchronize
or cudaDeviceSynchronize. "races": two operations touched the same bytes, and nothing ordered them. "values":
losses or norms differ from the CPU's. "failure": a kernel or the program failed.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fake_device.running import FakeDevice, run_program
from fake_device.test_engine_steps import STRATEGIES, Cases, assert_equal_curves
from fastsft import _C

PLACE = re.compile(r"call ((?:wait|synchronize):[0-9a-f,]+)")
# Every strategy with and without offload, on ranks that have peers in their node and across nodes.
RANKS = {name: 4 if case["node_size"] else 2 for name, case in STRATEGIES.items()}


def symbols() -> list[tuple[int, str]]:
    """Return the offsets and names of the functions in the extension, which must not be stripped."""
    lines = subprocess.run(
        ["nm", "-C", "--defined-only", str(_C.__file__)], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    found = (line.split(maxsplit=2) for line in lines)
    return sorted((int(at, 16), name) for at, kind, name in found if kind in "tTwW" and "fastsft" in name)


def name_of(place: str, table: list[tuple[int, str]]) -> str:
    """Return the functions of a place, innermost first, without parameters."""
    frames = [int(offset, 16) for offset in place.partition(":")[2].split(",")]
    names = [table[bisect_right(table, (frame, "")) - 1][1] for frame in frames]
    return " < ".join(name.partition("(")[0].removeprefix("fastsft::") for name in names)


def places(device: FakeDevice) -> set[str]:
    """Return the waits that the processes of a device have passed."""
    lines = (line for path in device.reports.glob("counts.*") for line in path.read_text().splitlines())
    return {match[1] for line in lines if (match := PLACE.search(line))}


def noticed(place: str, cases: Cases, expected: Any, folder: Path, ranks: int) -> set[str]:
    """Run `cases` without the waits of `place`; return what notices."""
    device = FakeDevice(
        Path(tempfile.mkdtemp(dir=folder)), schedule="lazy", devices=ranks, races=True,
        settings={"LEAVE_OUT": place, "PATIENCE": 10},
    )  # fmt: skip
    found = set()
    try:
        ours = run_program(device, "engine_steps", "cuda", str(folder), json.dumps(cases), ranks=ranks)
    except AssertionError:
        found.add("failure")
    else:
        try:
            assert_equal_curves(cases, ours[0], expected[0])
        except AssertionError:
            found.add("values")
    if device.lines("races"):
        found.add("races")
    if device.lines("failures"):
        found.add("failure")
    return found


def rows(names: list[str]) -> Iterator[tuple[str, str, str]]:
    """Yield each case, each of its waits, and what notices that the wait is missing."""
    table = symbols()
    for name in names:
        cases, ranks = {name: STRATEGIES[name]}, RANKS[name]
        with tempfile.TemporaryDirectory() as made:
            folder = Path(made)
            words = json.dumps(cases)
            expected = run_program(None, "engine_steps", "cpu", made, words, ranks=ranks)
            whole = FakeDevice(folder / "whole", schedule="lazy", devices=ranks, counts=True)
            run_program(whole, "engine_steps", "cuda", made, words, ranks=ranks)
            for place in sorted(places(whole)):
                found = noticed(place, cases, expected, folder, ranks)
                yield name, name_of(place, table), ", ".join(sorted(found)) or "nothing"


if __name__ == "__main__":
    print("| case | wait | noticed by |\n|---|---|---|")
    for row in rows(sys.argv[1:] or list(STRATEGIES)):
        print(f"| {' | '.join(row)} |", flush=True)
