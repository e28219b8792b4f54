"""Train tiny models by engines, one after the other, on the ranks of this machine.

usage: RANK=... WORLD_SIZE=... python engine_steps.py cpu|cuda FOLDER CASES

FOLDER: for the models and the ranks' rendezvous. CASES: a JSON object of {name: {"family": a key of
tiny_models.CONFIGS, "node_size": 0 for one node, "options": of the engine}}. Prints a JSON object with the
losses and gradient norms of each case's steps, and the sum of all its weights.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from rank_program import groups
from tiny_models import conversations, make_engine, write_model

STEPS = 2
RANK, WORLD_SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def results_of(engine: Any) -> dict[str, Any]:
    """Train on all rows in two micro-batches of each rank."""
    dataset = conversations()
    mine = np.arange(len(dataset), dtype=np.int64)[RANK::WORLD_SIZE]
    parts = np.array_split(mine, 2)
    weights = [np.full(len(part), 1.0 / dataset.target_counts().sum()) for part in parts]
    results = []
    for _ in range(STEPS):
        engine.begin_step(dataset, parts, weights, learning_rate=2e-4, weight_decay=0.1, max_grad_norm=1.0)
        results += engine.take_results(all=False)
    results += engine.take_results(all=True)
    total = sum(float(weight.double().sum()) for weight in engine.named_parameters().values())
    return {"losses": [r.loss for r in results], "norms": [r.grad_norm for r in results], "weights": total}


def train(device: str, model: Path, case: dict[str, Any]) -> dict[str, Any]:
    options = dict(case["options"])
    if WORLD_SIZE > 1:
        options |= groups(RANK, WORLD_SIZE, case.get("node_size", 0))
    engine = make_engine(model, device=device, **options)
    return results_of(engine)


def main() -> None:
    kind, folder, cases = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
    torch.set_num_threads(1)
    device = kind if kind == "cpu" else f"cuda:{RANK}"
    if kind == "cuda":
        torch.cuda.set_device(RANK)
    if WORLD_SIZE > 1:
        store = dist.FileStore(str(folder / f"{kind}.store"), WORLD_SIZE)
        backend = "nccl" if kind == "cuda" else "gloo"
        dist.init_process_group(backend, store=store, rank=RANK, world_size=WORLD_SIZE)
    done = {}
    for name, case in cases.items():
        model = folder / f"{case['family']}.{RANK}"
        if not model.exists():
            write_model(model, case["family"])
        done[name] = train(device, model, case)
    if WORLD_SIZE > 1:
        dist.destroy_process_group()
    print(json.dumps(done))


if __name__ == "__main__":
    main()
