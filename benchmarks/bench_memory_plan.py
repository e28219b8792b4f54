"""The memory plan beside what torch's CPU allocator handed out, from the engine's construction to step 2.

usage: python benchmarks/bench_memory_plan.py [--ranks 2] [--tokens 512]

Three models x three strategies x three recompute policies in both precisions, on gloo ranks; then, for each
model, nodes of two ranks, offloaded optimizer state, bfloat16 gradients, narrow moments with split masters;
and other families. The clones of collectives are in both figures. The error is plan / measured - 1.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

from harness import write_result
from memory_run import FAMILIES, MODELS, MemoryRun, measure

STRATEGIES = ("no_shard", "shard_grad_op", "full_shard")
POLICIES = ("none", "gate_up", "block")
DTYPES = ("float32", "bfloat16")


def runs(ranks: int, tokens: int) -> Iterator[MemoryRun]:
    for dtype, model, strategy, recompute in itertools.product(DTYPES, MODELS, STRATEGIES, POLICIES):
        yield MemoryRun(model, strategy, recompute, dtype, ranks, tokens)
    variants: list[dict[str, Any]] = [
        {"strategy": "hybrid_shard", "ranks": 2 * ranks, "node_size": ranks},
        {"strategy": "hybrid_shard_zero2", "ranks": 2 * ranks, "node_size": ranks},
        *({"strategy": strategy, "offload": True} for strategy in STRATEGIES),
        *({"strategy": strategy, "grad_dtype": "bfloat16"} for strategy in STRATEGIES),
    ]
    shared = {"recompute": "gate_up", "ranks": ranks, "tokens": tokens}
    for dtype, model, variant in itertools.product(DTYPES, MODELS, variants):
        yield MemoryRun(model, dtype=dtype, **{**shared, **variant})
    narrow = {"dtype": "bfloat16", "optim_dtype": "bfloat16", "master_dtype": "split", **shared}
    for model, strategy, grad_dtype in itertools.product(MODELS, STRATEGIES, DTYPES):
        yield MemoryRun(model, strategy, grad_dtype=grad_dtype, **narrow)
    for dtype, family in itertools.product(DTYPES, FAMILIES):
        yield MemoryRun(family, "full_shard", dtype=dtype, **shared)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=512, help="of one micro-batch; a step has two")
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for run in runs(args.ranks, args.tokens):
        result = measure(run)
        measured, plan = result["measured"], result["plan"]["peak"]
        cell = {**asdict(run), "measured": measured, "plan": plan, "error": plan / measured - 1}
        rows.append({**cell, "parts": result["plan"]["parts"]})
        if len(rows) == 1:
            print("  ".join(f"{name:>10}" for name in cell))
        shown = {**cell, "error": f"{cell['error']:+.2%}"}
        print("  ".join(f"{value!s:>10}" for value in shown.values()), flush=True)
    worst = max(abs(row["error"]) for row in rows)
    print(f"{len(rows)} runs, largest error {worst:.2%}")
    settings = {**vars(args), "largest_error": worst, "models": {**MODELS, **FAMILIES}, "rows": rows}
    write_result("memory_plan", {}, settings)


if __name__ == "__main__":
    main()
