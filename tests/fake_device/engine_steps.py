"""Train tiny models by engines, one after the other, on the ranks of this machine.

usage: RANK=... WORLD_SIZE=... python engine_steps.py cpu|cuda FOLDER CASES

FOLDER: for the ranks' rendezvous. CASES: a JSON object of {name: {"model": a folder, "node_size": 0 for one
node, "options": of the engine, "cudnn": True for its attention, "generic": True for transformers' model,
"adapters": True if adapters are trained}}.
Prints a JSON object with the losses and gradient norms of each case's steps, and the sum of all its weights.
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

from fastsft import _C
from rank_program import groups
from tiny_models import conversations, make_engine

STEPS = 2
RANK, WORLD_SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def begin_step(engine: Any) -> None:
    """Train on all rows in two micro-batches of each rank, or of each group of ranks that share them."""
    dataset, shared = conversations(), engine.context_parallel_size
    mine = np.arange(len(dataset), dtype=np.int64)[RANK // shared :: WORLD_SIZE // shared]
    parts = np.array_split(mine, 2)
    weights = [np.full(len(part), 1.0 / dataset.target_counts().sum()) for part in parts]
    engine.begin_step(dataset, parts, weights, learning_rate=2e-4, weight_decay=0.1, max_grad_norm=1.0)


def results_of(engine: Any) -> dict[str, Any]:
    results = []
    for _ in range(STEPS):
        begin_step(engine)
        results += engine.take_results(all=False)
    results += engine.take_results(all=True)
    total = sum(float(weight.double().sum()) for weight in engine.named_parameters().values())
    return {"losses": [r.loss for r in results], "norms": [r.grad_norm for r in results], "weights": total}


def begin_rank(kind: str, folder: Path) -> str:
    """Choose the rank's device, meet the other ranks in `folder`, and return the device."""
    torch.set_num_threads(1)
    if kind == "cuda":
        torch.cuda.set_device(RANK)
        # New memory is filled with NaN, in the order of the current stream: whoever still uses it races.
        torch.use_deterministic_algorithms(True, warn_only=True)
    if WORLD_SIZE > 1:
        store = dist.FileStore(str(folder / f"{kind}.store"), WORLD_SIZE)
        backend = "nccl" if kind == "cuda" else "gloo"
        dist.init_process_group(backend, store=store, rank=RANK, world_size=WORLD_SIZE)
    return kind if kind == "cpu" else f"cuda:{RANK}"


def options_of(case: dict[str, Any], device: str) -> dict[str, Any]:
    """Return the options of the case's engine; collective: makes its groups."""
    options = {**case["options"], "device": device}
    if WORLD_SIZE == 1:
        return options
    shared = options.get("context_parallel_size", 1)
    return options | groups(RANK, WORLD_SIZE, case.get("node_size", 0), shared)


def adapters_of(model: Path) -> _C.AdapterOptions:
    layers = json.loads((model / "config.json").read_text())["num_hidden_layers"]
    names = ("self_attn.q_proj", "self_attn.v_proj", "mlp.up_proj", "mlp.down_proj")
    modules = [f"model.layers.{layer}.{name}" for layer in range(layers) for name in names]
    return _C.AdapterOptions(linears=[_C.AdapterLinear(module, rank=4, scale=2.0) for module in modules])


def fill_adapters(engine: Any) -> None:
    """Give the adapters values whose gradients are not zero; collective."""
    generator = torch.Generator().manual_seed(0)
    for name, shape in sorted(engine.trained_shapes.items()):
        engine.set_parameter(name, torch.randn(shape, generator=generator) * 0.1)
    engine.publish()


def engine_of(case: dict[str, Any], options: dict[str, Any]) -> Any:
    """Make the case's engine with options_of(case, ...)."""
    model = Path(case["model"])
    if case.get("generic"):
        from generic_engines import loaded_generic_engine  # imports transformers, for seconds

        return loaded_generic_engine(model, rank=RANK, **options)
    if case.get("adapters"):
        engine = make_engine(model, adapters=adapters_of(model), **options)
        fill_adapters(engine)
        return engine
    engine = make_engine(model, **options)
    if case.get("cudnn"):  # which computes nothing that must be deterministic
        torch.use_deterministic_algorithms(False)
        engine.use_cudnn(True)
    return engine


def main() -> None:
    kind, folder, cases = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
    device = begin_rank(kind, folder)
    done = {name: results_of(engine_of(case, options_of(case, device))) for name, case in cases.items()}
    if WORLD_SIZE > 1:
        dist.destroy_process_group()
    print(json.dumps(done))


if __name__ == "__main__":
    main()
