"""Seconds of a step that reduces gradients once next to those of one that reduces them in every micro-batch.

usage: python benchmarks/bench_reductions.py [--strategy full_shard] [--ranks 2] [--micro_batches 4]
           [--tokens 256]

Both engines are made in the same gloo ranks and take their steps in turns. cpu_s: of all threads of a rank.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

import numpy as np

from fastsft import _C
from fastsft.cli.demo_model import small_config
from harness import Run, check_losses, ratios, write_result
from ranks import run_ranks

SIZE = {"vocab_size": 4096, "hidden_size": 256, "num_layers": 6, "num_heads": 4, "intermediate_size": 688}


def data(tokens: int, micro_batches: int) -> _C.TokenDataset:
    """A conversation a micro-batch, learned from its second token on."""
    dataset = _C.TokenDataset()
    for row in range(micro_batches):
        ids = np.random.default_rng(row).integers(3, SIZE["vocab_size"], tokens + 1).astype(np.int32)
        dataset.append(ids, [(1, tokens + 1)])
    return dataset


def step(engine: _C.Engine, dataset: _C.TokenDataset) -> Run:
    """One step on all rows, a micro-batch each."""
    rows = [np.array([row]) for row in range(len(dataset))]
    weights = [np.full(1, 1 / dataset.target_counts().sum() / engine.world_size)] * len(rows)
    begun, computed = time.perf_counter(), time.process_time()
    engine.begin_step(dataset, rows, weights, learning_rate=1e-4)
    (result,) = engine.take_results(all=True)
    metrics = {"step_s": time.perf_counter() - begun, "cpu_s": time.process_time() - computed}
    return Run(metrics, result.loss)


def both(groups: dict[str, str], strategy: str, tokens: int, micro_batches: int, pairs: int) -> list[Any]:
    """Pairs of steps of this rank: of every micro-batch reduced, and of the last one alone."""
    config, dataset = json.dumps(small_config(**SIZE)), data(tokens, micro_batches)
    engines = [
        _C.Engine(config, _C.StateOptions(strategy=strategy, sync_each_batch=each), num_threads=1, **groups)
        for each in (True, False)
    ]
    for engine in engines:
        for name, value in engine.named_parameters().items():
            noise = np.random.default_rng(len(name)).standard_normal(tuple(value.shape))
            engine.set_parameter(name, value.new_tensor(1 + 0 * noise if "norm" in name else 0.02 * noise))
        engine.publish()
    found = [tuple(step(engine, dataset) for engine in engines) for _ in range(2 + pairs)]
    each, once = ([run.evidence for run in side] for side in zip(*found, strict=True))
    check_losses(each, once, tolerance=1e-4)
    return found[2:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--strategy", default="full_shard")
    for name, default in (("ranks", 2), ("micro_batches", 4), ("tokens", 256), ("pairs", 20)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    first, *_ = run_ranks(args.ranks, both, args.strategy, args.tokens, args.micro_batches, args.pairs)
    write_result(f"reductions_{args.strategy}_{args.tokens}", ratios(first), {**vars(args), "size": SIZE})


if __name__ == "__main__":
    main()
