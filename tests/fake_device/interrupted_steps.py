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
from pathlib import Path
from typing import Any

import torch

from fake_device.engine_steps import (
    RANK,
    WORLD_SIZE,
    begin_rank,
    begin_step,
    options_of,
    results_of,
)
from fastsft import _C
from tiny_models import make_engine

LARGEST_OF_SMALL = 1 << 20
DEVICE = ctypes.CDLL(f"{os.environ['FAKE_DEVICE']}/libfake_device.so")


def play(model: Path, options: dict[str, Any], every: int, folder: Path) -> dict[str, Any]:
    """Train whole steps, then steps that are broken off, then a whole one; return all results."""
    played = {"whole": results_of(make_engine(model, **options))}
    begin_step(make_engine(model, **options))  # nobody takes the result
    take_free_memory()
    if WORLD_SIZE > 1:
        played["refused model"] = refused_model(model, options, folder)
        take_free_memory()
    return {**played, "broken off": broken_off(model, options, every)}


def refused_model(model: Path, options: dict[str, Any], folder: Path) -> str:
    """Load a model that the last rank cannot read; return the kind of this rank's error."""
    engine = make_engine(model, **options)
    broken = folder / f"broken.{RANK}"
    shutil.copytree(model, broken, dirs_exist_ok=True)
    if RANK == WORLD_SIZE - 1:
        (broken / "model.safetensors").unlink()
    try:
        _C.load_model(engine, str(broken))
    except Exception as error:
        return type(error).__name__
    return "none"


def broken_off(model: Path, options: dict[str, Any], every: int) -> dict[str, Any]:
    """Break steps off, each at a later collective; return the loss of the first that comes to its end."""
    for number in itertools.count(1, every):
        engine = make_engine(model, **options)
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
    done = {
        name: play(Path(case["model"]), options_of(case, device), every, folder)
        for name, case in cases.items()
    }
    torch.cuda.synchronize()
    print(json.dumps(done), flush=True)


if __name__ == "__main__":
    main()
