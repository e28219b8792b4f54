"""Play one case of interrupted_steps.py again and again, each time without the waits of one place.

usage: RANK=... WORLD_SIZE=... python mutated_steps.py FOLDER CASE EVERY PARTS

EVERY: as for interrupted_steps.py. PARTS: a JSON list of names of its parts_of.

Prints lines of JSON. The first, {"places": [...]}, has all places that the ranks pass; the program then reads
a line with those to leave out. {"place": ...} comes before a place is left out, and {"place": ..., "noticed":
[...]} after it. A failing device ends the program.
"""

from __future__ import annotations

import gc
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from fake_device.engine_steps import RANK, WORLD_SIZE, begin_rank, options_of
from fake_device.interrupted_steps import DEVICE, parts_of, play

PLACE = re.compile(r"call ((?:wait|synchronize):[0-9a-f,]+)$", re.MULTILINE)


def tell(**line: Any) -> None:
    print(json.dumps(line), flush=True)


def passed_places() -> set[str]:
    """Return the waits that this process has passed."""
    DEVICE.fake_device_write_counts()
    counts = Path(os.environ["FAKE_DEVICE_REPORT"], f"counts.{os.getpid()}")
    return set(PLACE.findall(counts.read_text()))


def places_of_all_ranks() -> list[str]:
    if WORLD_SIZE == 1:
        return sorted(passed_places())
    store = dist.distributed_c10d._get_default_store()
    store.set(f"places {RANK}", json.dumps(sorted(passed_places())))
    return sorted({place for rank in range(WORLD_SIZE) for place in json.loads(store.get(f"places {rank}"))})


def main() -> None:
    folder, case, every = Path(sys.argv[1]), json.loads(sys.argv[2]), int(sys.argv[3])
    device = begin_rank("cuda", folder)
    parts = parts_of(case, options_of(case, device), every, folder)
    chosen = {name: parts[name] for name in json.loads(sys.argv[4])}

    def played(place: str) -> str:
        """Return all results, as text: NaN is then equal to itself."""
        DEVICE.fake_device_leave_out(place.encode())
        result = json.dumps(play(chosen))
        DEVICE.fake_device_leave_out(b"")
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()  # new memory is filled with NaN
        return result

    expected = played("")
    tell(places=places_of_all_ranks())
    for place in json.loads(sys.stdin.readline()):
        tell(place=place)
        races = DEVICE.fake_device_races()
        try:
            wrong = played(place) != expected
        except Exception:
            tell(place=place, noticed=["failure"])
            os._exit(1)
        raced = DEVICE.fake_device_races() > races
        tell(place=place, noticed=["races"] * raced + ["values"] * wrong)
    os._exit(0)


if __name__ == "__main__":
    main()
