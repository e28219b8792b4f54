"""Leave out each wait of a weight sync in turn, and print what notices: a table for docs/gpu.md.

usage: python -m fake_device.sync_mutations [FILE:LINE ...]   (in tests, with PYTHONPATH=support; minutes)

FILE:LINE: in fastsft/weight_sync; default: every line that waits for an operation of the group. "races",
"values", "failure": as in mutations.py; values are those that a receiver compares.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from fake_device.running import PACKAGE, FakeDevice, run_program
from fastsft.weight_sync.modes import MODES

WAIT = re.compile(r"\b(?:transport|self)\.wait\(")
RANKS = 3
ALL_RIGHT = [*sorted(MODES), "refused"]  # of synced_weights.py


def waits() -> Iterator[tuple[str, str]]:
    """Find each line that waits, and the class or function and the method that it is in."""
    for path in sorted((PACKAGE / "fastsft" / "weight_sync").glob("*.py")):
        outer = inner = ""
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            if found := re.match(r"( *)(?:def|class) (\w+)", line):
                outer, inner = (outer, f".{found[2]}") if found[1] else (found[2], "")
            elif WAIT.search(line):
                yield f"{path.name}:{number}", outer + inner


def noticed_by(place: str) -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        device = FakeDevice(Path(folder, "reports"), schedule="lazy", races=True, devices=RANKS)
        try:
            found = run_program(device, "synced_weights", folder, place, ranks=RANKS)
        except AssertionError:
            return ["failure"]
        wrong = found != [ALL_RIGHT] * RANKS
        return ["races"] * bool(device.lines("races")) + ["values"] * wrong


def main() -> None:
    assert not noticed_by("none"), "a sync with all waits fails"
    print("| wait | noticed by |\n|---|---|")
    for place, name in waits():
        if not sys.argv[1:] or place in sys.argv[1:]:
            print(f"| {place} `{name}` | {', '.join(noticed_by(place)) or 'nothing'} |", flush=True)


if __name__ == "__main__":
    main()
