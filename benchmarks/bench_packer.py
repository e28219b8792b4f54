"""Best-fit packing of a data set against TRL's, and optimizer steps cut over eight ranks.

usage: python benchmarks/bench_packer.py [--rows 100000] [--alone 1000000] [--capacity 2048] [--pairs 3]

TRL needs an environment of its own (`pip install trl fastsft`): it asks for a newer transformers than the
other baselines. Lengths are ShareGPT-like: log-normal with a median of 493 tokens, cut at the capacity. Both
sides get the same lengths in one run and must need the same number of bins. TRL packs token lists, so its
side gets one byte a token, as few as it takes; ours gives the assignment, which is all that the engine needs.
CPU seconds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

import numpy as np
import numpy.typing as npt

from fastsft import _C
from harness import Run, UnequalResultsError, paired, write_result

Lengths = npt.NDArray[np.int64]
SEVEN_B = {
    "model_type": "llama", "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008,
    "num_hidden_layers": 32, "num_attention_heads": 32, "rms_norm_eps": 1e-5,
}  # fmt: skip
RANKS = 8


def sharegpt_like(rows: int, capacity: int) -> Lengths:
    drawn = np.random.default_rng(0).lognormal(6.2, 0.9, rows)
    return np.clip(drawn, 8, capacity).astype(np.int64)


def trl_table(lengths: Lengths) -> Any:
    """One list column of one byte a token."""
    import pyarrow as pa

    offsets = np.concatenate(([0], np.cumsum(lengths)))
    values = pa.array(np.zeros(offsets[-1], dtype=np.int8))
    column = pa.LargeListArray.from_arrays(pa.array(offsets, type=pa.int64()), values)
    return pa.table({"input_ids": column})


def run_trl(table: Any, capacity: int) -> Run:
    from trl.data_utils import _pack_bfd

    start = time.process_time()
    packed = _pack_bfd(table, capacity)
    return Run({"seconds": time.process_time() - start}, len(packed))


def run_ours(lengths: Lengths, capacity: int) -> Run:
    start = time.process_time()
    _, offsets = _C.pack_best_fit(lengths, capacity)
    return Run({"seconds": time.process_time() - start}, len(offsets) - 1)


def same_bins(baseline: int, ours: int) -> None:
    if baseline != ours:
        raise UnequalResultsError(f"TRL needs {baseline} bins, ours {ours}")


def steps(lengths: Lengths, conversations: int, budget: int) -> dict[str, float]:
    """Groups of `conversations` cut over eight ranks: seconds a step, balance, fill of the micro-batches."""
    cost = _C.conversation_cost(json.dumps(SEVEN_B))
    groups = [lengths[i * conversations : (i + 1) * conversations] for i in range(20)]
    seconds, balances, fills, rounds = [], [], [], []
    for group in groups:
        start = time.process_time()
        packing = _C.pack_step(group, RANKS, budget, cost)
        seconds.append(time.process_time() - start)
        balances.append(_C.balance(packing, group, cost))
        rounds.append(len(packing[0]))
        fills.append(group.sum() / (RANKS * rounds[-1] * budget))
    return {
        "conversations": conversations,
        "micro_batch_tokens": budget,
        "seconds": statistics.median(seconds),
        "micro_batches": statistics.mean(rounds),
        "balance": statistics.mean(balances),
        "worst_balance": min(balances),
        "fill": statistics.mean(fills),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[100_000])
    parser.add_argument("--alone", type=int, default=1_000_000, help="rows that only ours packs")
    parser.add_argument("--capacity", type=int, default=2048)
    parser.add_argument("--pairs", type=int, default=3)
    args = parser.parse_args()
    import trl

    results, waste = {}, {}
    for rows in args.rows:
        lengths = sharegpt_like(rows, args.capacity)
        table = trl_table(lengths)
        ratios = paired(
            lambda table=table: run_trl(table, args.capacity),
            lambda lengths=lengths: run_ours(lengths, args.capacity),
            pairs=args.pairs, warm_up=1, check=same_bins,
        )  # fmt: skip
        results[f"{rows} rows, seconds"] = ratios["seconds"]
        bins = run_ours(lengths, args.capacity).evidence
        waste[str(rows)] = 1 - lengths.sum() / (bins * args.capacity)
        ratio = ratios["seconds"]
        print(f"{rows:,} rows: TRL {ratio.baseline:.3f} s, ours {ratio.ours:.4f} s, {1 / ratio.median:.0f}x, "
              f"waste {waste[str(rows)]:.4%}")  # fmt: skip
    lengths = sharegpt_like(args.alone, args.capacity)
    seconds = statistics.median(run_ours(lengths, args.capacity).metrics["seconds"] for _ in range(5))
    print(f"{args.alone:,} rows: ours {seconds:.4f} s")
    cut = [steps(lengths, n, budget) for n, budget in ((128, 2048), (128, 8192), (512, 8192), (4096, 16384))]
    for row in cut:
        print({name: round(value, 6) for name, value in row.items()})
    settings = {
        **vars(args),
        "trl": trl.__version__,
        "ranks": RANKS,
        "waste": waste,
        "steps": cut,
        "alone_seconds": seconds,
    }
    write_result("packer", results, settings)


if __name__ == "__main__":
    main()
