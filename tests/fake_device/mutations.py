"""Leave out each wait of the product in turn, and print what notices: a table for docs/gpu.md.

usage: python -m fake_device.mutations [CASE ...]   (in tests; minutes each)

CASE: of cases.STRATEGIES; default: all.

A wait is a place in the extension that calls cudaStreamWaitEvent, cudaEventSynchronize, cudaStreamSynchronize
or cudaDeviceSynchronize. "races": two operations touched the same bytes, and nothing ordered them. "values":
results differ from those with all waits. "failure": a kernel or the program failed. The extension must not be
stripped.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from bisect import bisect_right
from pathlib import Path
from typing import Any

from fake_device.cases import STRATEGIES
from fake_device.running import FakeDevice, start_program
from fastsft import _C

PATIENCE = 20  # seconds that a rank waits for the others


def symbols() -> list[tuple[int, str]]:
    """Return the offsets and names of the functions in the extension."""
    lines = subprocess.run(
        ["nm", "-C", "--defined-only", str(_C.__file__)], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    found = (line.split(maxsplit=2) for line in lines)
    return sorted((int(at, 16), name) for at, kind, name in found if kind in "tTwW")


def name_of(place: str, table: list[tuple[int, str]]) -> str:
    """Return the functions of fastsft at a place, innermost first, without parameters."""
    frames = [int(offset, 16) for offset in place.partition(":")[2].split(",")]
    names = [table[bisect_right(table, (frame, "")) - 1][1] for frame in frames]
    short = [name.replace("(anonymous namespace)::", "").partition("(")[0] for name in names]
    return " < ".join(name.removeprefix("fastsft::") for name in short if name.startswith("fastsft::"))


def ranks_of(case: dict[str, Any]) -> int:
    """Return a number of ranks that have peers in their node and across nodes."""
    return 2 * (case["node_size"] or 1)


def mutate(case: dict[str, Any], folder: Path, found: dict[str, set[str]]) -> bool:
    """Leave out the places that are not in `found` until one ends the programs; add to `found`.

    Returns whether all places have been left out.
    """
    ranks = ranks_of(case)
    device = FakeDevice(
        folder / "reports", schedule="lazy", devices=ranks, races=True, counts=True,
        settings={"PATIENCE": PATIENCE},
    )  # fmt: skip
    started = start_program(
        device, "mutated_steps", str(folder), json.dumps(case), json.dumps(sorted(found)), ranks=ranks
    )
    outputs = [process.communicate() for process in started]
    lines = [json.loads(line) for out, _ in outputs for line in out.splitlines() if line.startswith("{")]
    assert lines, "\n".join(err[-4000:] for _, err in outputs)
    for line in lines:
        found.setdefault(line["place"], set()).update(line.get("noticed", ()))
    complete = not any(process.returncode for process in started)
    if not complete:
        found[lines[-1]["place"]].add("failure")
    return complete


def main() -> None:
    table = symbols()
    print("| case | wait | noticed by |\n|---|---|---|")
    for name in sys.argv[1:] or STRATEGIES:
        found: dict[str, set[str]] = {}
        complete = False
        while not complete:
            with tempfile.TemporaryDirectory() as folder:
                complete = mutate(STRATEGIES[name], Path(folder), found)
        for place, noticed in sorted(found.items()):
            kind = place.partition(":")[0]
            how = ", ".join(sorted(noticed)) or "nothing"
            print(f"| {name} | {kind}: {name_of(place, table)} | {how} |", flush=True)


if __name__ == "__main__":
    main()
