"""The memory plan beside what torch's CPU allocator handed out, from the engine's construction to step 2.

usage: python benchmarks/bench_memory_plan.py [--ranks 2] [--tokens 512]

Three models x three strategies x three recompute policies in both precisions, on gloo ranks; the clones of
collectives are in both figures. The error is plan / measured - 1.
"""

from __future__ import annotations

import argparse
import itertools

from harness import write_result
from memory_run import MODELS, MemoryRun, measure

STRATEGIES = ("no_shard", "shard_grad_op", "full_shard")
POLICIES = ("none", "gate_up", "block")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=512, help="of one micro-batch; a step has two")
    args = parser.parse_args()
    rows, worst = [], 0.0
    print(
        f"{'model':24} {'strategy':14} {'recompute':9} {'dtype':9} {'measured':>13} {'plan':>13} {'error':>8}"
    )
    for dtype, model, strategy, recompute in itertools.product(
        ("float32", "bfloat16"), MODELS, STRATEGIES, POLICIES
    ):
        result = measure(MemoryRun(model, strategy, recompute, dtype, args.ranks, args.tokens))
        measured, plan = result["measured"], result["plan"]["peak"]
        error = plan / measured - 1
        worst = max(worst, abs(error))
        rows.append(
            {"model": model, "strategy": strategy, "recompute": recompute, "dtype": dtype,
             "measured": measured, "plan": plan, "error": error, "parts": result["plan"]["parts"]}
        )  # fmt: skip
        print(
            f"{model:24} {strategy:14} {recompute:9} {dtype:9} {measured:13,} {plan:13,} {error:+8.2%}",
            flush=True,
        )
    print(f"largest error {worst:.2%}")
    write_result("memory_plan", {}, {**vars(args), "largest_error": worst, "models": MODELS, "rows": rows})


if __name__ == "__main__":
    main()
