"""Train by engines that come to an early end, whose memory the next engine takes.

usage: RANK=... WORLD_SIZE=... python interrupted_steps.py cuda FOLDER CASES [EVERY]

FOLDER, CASES: as for engine_steps.py; FOLDER also gets a broken model. EVERY: of a step's collectives each
EVERYth fails in turn; default: 5.
Prints a JSON object with what each case's engines returned.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fake_device.engine_steps import (
    RANK,
    WORLD_SIZE,
    begin_rank,
    begin_step,
    engine_of,
    options_of,
    results_of,
)
from fake_device.uses_of_weights import uses_of_weights
from fastsft import _C

LARGEST_OF_SMALL = 1 << 20
DEVICE = ctypes.CDLL(f"{os.environ['FAKE_DEVICE']}/libfake_device.so")


Make = Callable[[], Any]


def parts_of(
    case: dict[str, Any], options: dict[str, Any], every: int, folder: Path
) -> dict[str, Callable[[], Any]]:
    """Return the parts of a play by name: whole steps, steps that end early; collective."""
    make, model = partial(engine_of, case, options), Path(case["model"])
    parts = {
        "whole": lambda: results_of(make()),
        "under way": lambda: uses_of_weights(make(), model, folder, rests=False),
        "dropped": lambda: begin_step(make()),  # nobody takes the result
        "refused model": lambda: refused_model(make(), model, folder),
        "broken off": lambda: broken_off(make, every),
    }
    if WORLD_SIZE == 1:
        del parts["refused model"]
    return parts


def play(parts: dict[str, Callable[[], Any]]) -> dict[str, Any]:
    """Play the parts in turn, each in the memory of those before; return all results."""
    played = {}
    for name, part in parts.items():
        played[name] = part()
        take_free_memory()
    return played


def refused_model(engine: Any, model: Path, folder: Path) -> str:
    """Load a model that the last rank cannot read; return the kind of this rank's error."""
    broken = folder / f"broken.{RANK}"
    shutil.copytree(model, broken, dirs_exist_ok=True)
    if RANK == WORLD_SIZE - 1:
        (broken / "model.safetensors").unlink()
    try:
        _C.load_model(engine, str(broken))
    except Exception as error:
        return type(error).__name__
    return "none"


def broken_off(make: Make, every: int) -> dict[str, Any]:
    """Break steps off, each at a later collective; return the loss of the first that comes to its end."""
    for number in itertools.count(1, every):
        engine = make()
        DEVICE.fake_device_refuse_collective(number)
        try:
            begin_step(engine)
            (result,) = engine.take_results(all=True)
            return {"loss": result.loss, "collectives": number}
        except _C.CollectiveError:
            pass
        finally:
            DEVICE.fake_device_refuse_collective(0)
            del engine
            take_free_memory()
    raise AssertionError("not reached")


def take_free_memory() -> None:
    """Write over all memory that engines have given back: whoever still uses it races with that."""
    stream = torch.cuda.current_stream().cuda_stream
    sizes: list[int] = []
    for segment in torch.cuda.memory_snapshot():
        free = [block["size"] for block in segment["blocks"] if block["state"] == "inactive"]
        for size in free if segment["stream"] == stream else []:
            # torch takes larger tensors from other segments. Free neighbours are one block.
            most = LARGEST_OF_SMALL if segment["segment_type"] == "small" else size
            sizes += [min(most, size - begin) for begin in range(0, size, most)]
    for_a_moment = [
        torch.empty(size, dtype=torch.uint8, device="cuda") for size in sorted(sizes, reverse=True)
    ]  # filled, see begin_rank
    del for_a_moment


def main() -> None:
    kind, folder, cases = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
    every = int(sys.argv[4]) if len(sys.argv) > 4 else 5
    device = begin_rank(kind, folder)
    done = {}
    for name, case in cases.items():
        parts = parts_of(case, options_of(case, device), every, folder)
        del parts["under way"]  # uses_of_weights.py plays it
        done[name] = play(parts)
    torch.cuda.synchronize()
    print(json.dumps(done), flush=True)


if __name__ == "__main__":
    main()
