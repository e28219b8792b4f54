"""Read, save, load and send the weights of an engine whose steps are under way.

usage: RANK=... WORLD_SIZE=... python uses_of_weights.py cuda FOLDER CASES

FOLDER, CASES: as for engine_steps.py. Prints a JSON object with what the uses of each case gave, first while
steps were under way, then with the device at rest.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fake_device.engine_steps import (
    RANK,
    WORLD_SIZE,
    begin_rank,
    begin_step,
    engine_of,
    options_of,
)
from fastsft import _C
from tiny_models import conversations

STEPS_AT_FIRST = 3  # one more than an engine has rooms for uploads
Tensors = dict[str, torch.Tensor]


def digest_of(tensors: Tensors) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode() + tensors[name].detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def sent(engine: Any) -> str:
    """Gather each unit as a sync of weights does."""
    units = range(len(_C.unit_tensors(engine)))
    parts = [_C.gather_unit(engine, unit, master=master) for unit in units for master in (False, True)]
    return digest_of({f"{at} {name}": t.float() for at, part in enumerate(parts) for name, t in part})


def written(staging: _C.CheckpointStaging, to: str) -> list[_C.FileDigest]:
    """Write what was staged before later steps."""
    return staging.write(to, dtype="float32", max_shard_size=10**9, with_model=False, with_state=True)[0]


def checksums(folder: Path, write: Callable[[str], list[_C.FileDigest]]) -> list[int]:
    """Write files into a folder of their own, and return their checksums."""
    with tempfile.TemporaryDirectory(dir=folder) as to:
        return [file.crc32c for file in write(to)]


def evaluated(engine: Any) -> float:
    dataset = conversations()
    rows = np.arange(len(dataset), dtype=np.int64)[RANK::WORLD_SIZE]
    loss: float = engine.loss(dataset, rows, np.full(len(rows), 0.1))
    return loss


def set_one(engine: Any) -> None:
    name, shape = min(engine.trained_shapes.items())
    engine.set_parameter(name, torch.full(shape, 0.5))
    engine.publish()


def uses_of_weights(engine: Any, model: Path, folder: Path, *, rests: bool) -> dict[str, Any]:
    """Begin a step before each use of the weights, and return what each use gave; collective.

    rests: take each step's result before the next, so that the device is at rest. The uses give the same.
    """
    staging = _C.CheckpointStaging(engine)
    uses = {
        "loss": lambda: evaluated(engine),
        "weights": lambda: digest_of(engine.named_parameters()),
        "sent": lambda: sent(engine),
        "digests": lambda: [unit.shard for unit in engine.state_digests()],
        "saved": lambda: checksums(folder, lambda to: _C.stream_training_state(engine, to)),
        "own state": lambda: checksums(folder, lambda to: [_C.save_training_state(engine, to)]),
        "staged": staging.stage,
        # next, because other uses wait for the device, and with it for the staged bytes
        "staged file": lambda: checksums(folder, lambda to: written(staging, to)),
        "set": lambda: set_one(engine),
        "weights after one was set": lambda: digest_of(engine.named_parameters()),
        "loaded": lambda: len(_C.load_model(engine, str(model))),
        "weights afterwards": lambda: digest_of(engine.named_parameters()),
    }
    found: dict[str, Any] = {}
    losses: list[float] = []
    for name, use in uses.items():
        for _ in range(1 if found else STEPS_AT_FIRST):
            begin_step(engine)
            losses += [result.loss for result in (engine.take_results(all=True) if rests else ())]
        found[name] = use()
    return {**found, "losses": losses + [result.loss for result in engine.take_results(all=True)]}


def main() -> None:
    kind, folder, cases = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
    device = begin_rank(kind, folder)
    done = {}
    for name, case in cases.items():
        options, model = options_of(case, device), Path(case["model"])
        done[name] = [
            uses_of_weights(engine_of(case, options), model, folder, rests=rests) for rests in (False, True)
        ]
    torch.cuda.synchronize()
    print(json.dumps(done), flush=True)


if __name__ == "__main__":
    main()
