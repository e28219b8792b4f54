"""Leave out each wait of the product in turn, and print what notices: a table for docs/gpu.md.

usage: python -m fake_device.mutations [OPTIONS] [CASE ...]   (in tests, with PYTHONPATH=support; minutes)

CASE: of cases.STRATEGIES, GROUPS or MUTATED; default: STRATEGIES.
--only PATTERN: only waits whose name has this regular expression.
--part N/ALL: only each ALLth wait, from the Nth on.
--parts NAME,...: parts of interrupted_steps.py, in their order; default: all.
--every N: steps are broken off at each Nth collective in turn.
--again: also waits that an earlier case has noticed; by default a later case leaves out the waits that no
earlier one has passed or noticed.

A wait is a place in the extension that calls cudaStreamWaitEvent, cudaEventSynchronize, cudaStreamSynchronize
or cudaDeviceSynchronize. "races": two operations touched the same bytes, and nothing ordered them. "values":
results differ from those with all waits. "failure": a kernel or the program failed. The extension must not be
stripped.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import tempfile
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from fake_device.cases import GROUPS, MUTATED, STRATEGIES
from fake_device.models import with_models
from fake_device.running import PATIENCE, FakeDevice, start_program
from fastsft import _C

EVERY = 14  # of the collectives of a step
PARTS = ("whole", "under way", "dropped", "refused model", "broken off")
CASES = {**STRATEGIES, **{name: case for group in GROUPS.values() for name, case in group.items()}, **MUTATED}
Choose = Callable[[list[str]], list[str]]


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


def lines_of(process: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
    """Return what a rank prints in JSON."""
    assert process.stdout
    return (json.loads(line) for line in process.stdout if line.startswith("{"))


def play(
    case: dict[str, Any], folder: Path, choose: Choose, every: int, parts: Sequence[str]
) -> tuple[list[dict[str, Any]], bool]:
    """Run mutated_steps.py on all ranks; return its lines, and whether it came to its end.

    choose: returns those of all places that are left out.
    """
    ranks = ranks_of(case)
    device = FakeDevice(
        folder / "reports", schedule="lazy", devices=ranks, races=True, counts=True,
        settings={"PATIENCE": PATIENCE},
    )  # fmt: skip
    arguments = (str(folder), json.dumps(case), str(every), json.dumps(parts))
    started = start_program(device, "mutated_steps", *arguments, ranks=ranks)
    try:
        lines = told_by(started, choose)
    finally:
        for process in started:
            process.kill()
            process.communicate()
    return lines, not any(process.returncode for process in started)


def told_by(started: list[subprocess.Popen[str]], choose: Choose) -> list[dict[str, Any]]:
    """Tell each rank what to leave out, and return their further lines. A rank that fails ends the others."""
    for process in started:
        first = next(lines_of(process), None)
        assert first, process.communicate()[1][-4000:]
        assert process.stdin
        process.stdin.write(json.dumps(choose(first["places"])) + "\n")
        process.stdin.flush()
    while any(process.poll() is None for process in started):
        if any(process.returncode for process in started):
            for process in started:
                process.kill()
        time.sleep(0.2)
    return [line for process in started for line in lines_of(process)]


def mutate(
    case: dict[str, Any], choose: Choose, every: int = EVERY, parts: Sequence[str] = PARTS
) -> dict[str, set[str]]:
    """Leave out each chosen place in turn; return by what it was noticed. A failure ends the programs."""
    found: dict[str, set[str]] = {}

    def left(places: list[str]) -> list[str]:
        return [place for place in choose(places) if place not in found]

    complete = False
    while not complete:
        with tempfile.TemporaryDirectory() as folder:
            lines, complete = play(case, Path(folder), left, every, parts)
        for line in lines:
            found.setdefault(line["place"], set()).update(line.get("noticed", ()))
        if not complete:
            found[lines[-1]["place"]].add("failure")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--part", default="1/1")
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--every", type=int, default=EVERY)
    parser.add_argument("--again", action="store_true")
    parser.add_argument("cases", nargs="*", default=list(STRATEGIES))
    options = parser.parse_args()
    table, (part, parts) = symbols(), map(int, options.part.split("/"))
    noticed: set[str] = set()

    def chosen(places: list[str]) -> list[str]:
        named = [place for place in places if re.search(options.only, name_of(place, table))]
        return [place for place in named[part - 1 :: parts] if options.again or place not in noticed]

    print("| case | wait | noticed by |\n|---|---|---|")
    for name, case in with_models({name: CASES[name] for name in options.cases}).items():
        found = mutate(case, chosen, options.every, options.parts.split(","))
        for place, by in sorted(found.items()):
            kind = place.partition(":")[0]
            how = ", ".join(sorted(by)) or "nothing"
            print(f"| {name} | {kind}: {name_of(place, table)} | {how} |", flush=True)
        noticed |= {place for place, by in found.items() if by}


if __name__ == "__main__":
    main()
