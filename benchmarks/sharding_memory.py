"""Bytes a rank holds under each strategy, beside the design's table (P parameters, W ranks, largest unit U).

usage: python benchmarks/sharding_memory.py [--ranks 1 2 3 4] [--dtype float32]

Engines of a small Llama on gloo ranks take one optimizer step; then every rank says what it holds.
Activations are left out: they belong to the batch. One rank is always no_shard; even numbers of ranks are
nodes of two under the hybrid strategies.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

import numpy as np

from fastsft import _C
from fastsft.cli.demo_model import small_config
from harness import write_result
from ranks import run_ranks

SIZE = {"vocab_size": 4096, "hidden_size": 128, "num_layers": 6, "num_heads": 4, "intermediate_size": 344}


def held(groups: dict[str, str], config: str, strategy: str, dtype: str, sharing: int) -> dict[str, Any]:
    """What this rank holds after a step, and P and U as padded for these ranks."""
    engine = _C.Engine(config, _C.StateOptions(strategy=strategy, compute_dtype=dtype), **groups)
    dataset = _C.TokenDataset()
    dataset.append(np.arange(3, 60, dtype=np.int32), [(10, 57)])
    engine.begin_step(dataset, [np.zeros(1, dtype=np.int64)], [np.full(1, 1 / 47)], learning_rate=1e-4)
    engine.take_results(all=True)
    memory = {name: size for name, size in engine.memory().items() if name not in ("activations", "batches")}
    multiple = 128 * (sharing if strategy != "no_shard" else 1)
    units = [-(-size // multiple) * multiple for size in engine.unit_sizes]
    return {"held": sum(memory.values()), "parts": memory, "p": sum(units), "u": max(units)}


def planned(strategy: str, dtype: str, p: int, u: int, ranks: int) -> float:
    """docs/sharding.md; `ranks`: those that share one copy."""
    wide = dtype == "float32"
    if strategy == "no_shard" or ranks == 1:
        return (16 if wide else 18) * p
    if strategy in ("shard_grad_op", "hybrid_shard_zero2"):
        return (4 * p + 12 * p / ranks if wide else 2 * p + 16 * p / ranks) + 8 * u
    return 16 * p / ranks + 16 * u if wide else 18 * p / ranks + 12 * u


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 3, 4])
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    args = parser.parse_args()
    config = json.dumps(small_config(**SIZE))
    rows = []
    print(f"{'strategy':18} {'ranks':>5} {'held':>12} {'design':>12} {'ratio':>7}   ({args.dtype})")
    for strategy in _C.strategies():
        for ranks in args.ranks:
            sharing = 2 if strategy.startswith("hybrid") and ranks % 2 == 0 else ranks
            results = run_ranks(ranks, held, config, strategy, args.dtype, sharing, node_size=sharing)
            largest = max(results, key=lambda result: result["held"])
            plan = planned(strategy, args.dtype, largest["p"], largest["u"], sharing)
            rows.append({"strategy": strategy, "ranks": ranks, "design": plan, **largest})
            print(
                f"{strategy:18} {ranks:5} {largest['held']:12,} {plan:12,.0f} {largest['held'] / plan:7.4f}"
            )
    write_result(f"sharding_memory_{args.dtype}", {}, {"size": SIZE, "rows": rows})


if __name__ == "__main__":
    main()
