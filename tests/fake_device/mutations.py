"""Leave out each wait of the product in turn, and print what notices: a table for docs/gpu.md.

usage: python -m fake_device.mutations [--only WORD] [--part N/ALL] [CASE ...]   (in tests; minutes each)

CASE: of cases.STRATEGIES; default: all. WORD: only waits whose name has it. N/ALL: only each ALLth wait, from
the Nth on.

A wait is a place in the extension that calls cudaStreamWaitEvent, cudaEventSynchronize, cudaStreamSynchronize
or cudaDeviceSynchronize. "races": two operations touched the same bytes, and nothing ordered them. "values":
results differ from those with all waits. "failure": a kernel or the program failed. The extension must not be
stripped.
"""

from __future__ import annotations

import argparse
import json
import subprocess
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


def play(case: dict[str, Any], folder: Path, skipped: list[str] | None) -> tuple[list[Any], bool]:
    """Run mutated_steps.py on all ranks; return its lines, and whether it came to its end.

    skipped: the places that are not left out; None for all.
    """
    ranks = ranks_of(case)
    device = FakeDevice(
        folder / "reports", schedule="lazy", devices=ranks, races=True, counts=True,
        settings={"PATIENCE": PATIENCE},
    )  # fmt: skip
    started = start_program(
        device, "mutated_steps", str(folder), json.dumps(case), json.dumps(skipped), ranks=ranks
    )
    outputs = [process.communicate() for process in started]
    lines = [json.loads(line) for out, _ in outputs for line in out.splitlines() if line.startswith("{")]
    assert lines, "\n".join(err[-4000:] for _, err in outputs)
    return lines, not any(process.returncode for process in started)


def mutate(case: dict[str, Any], places: list[str], all_places: list[str]) -> dict[str, set[str]]:
    """Leave out each of `places` in turn; return by what it was noticed. A failure ends the programs."""
    found: dict[str, set[str]] = {}
    while left := [place for place in places if place not in found]:
        skipped = sorted(set(all_places) - set(left))
        with tempfile.TemporaryDirectory() as folder:
            lines, complete = play(case, Path(folder), skipped)
        for line in lines:
            found.setdefault(line["place"], set()).update(line.get("noticed", ()))
        if not complete:
            found[lines[-1]["place"]].add("failure")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--part", default="1/1")
    parser.add_argument("cases", nargs="*", default=list(STRATEGIES))
    options = parser.parse_args()
    table, (part, parts) = symbols(), map(int, options.part.split("/"))
    print("| case | wait | noticed by |\n|---|---|---|")
    for name in options.cases:
        with tempfile.TemporaryDirectory() as folder:
            lines, _ = play(STRATEGIES[name], Path(folder), None)
        everything = sorted({place for line in lines for place in line["places"]})
        places = [place for place in everything if options.only in name_of(place, table)][part - 1 :: parts]
        for place, noticed in sorted(mutate(STRATEGIES[name], places, everything).items()):
            kind = place.partition(":")[0]
            how = ", ".join(sorted(noticed)) or "nothing"
            print(f"| {name} | {kind}: {name_of(place, table)} | {how} |", flush=True)


if __name__ == "__main__":
    main()
