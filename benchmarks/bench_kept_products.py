"""Compare oneDNN's own cache bounds with those of fastsft on matrix products of many lengths.

    python benchmarks/bench_kept_products.py [--width 256] [--layers 4] [--micro_batches 200] [--lengths 4]

A micro-batch does the products of forward and backward pass of a decoder's layers (fused query, key and
value; output; gate and up; down) through torch's oneDNN. Its number of tokens is one of `--lengths` numbers,
drawn again and again; 0: every micro-batch has another. Each side is a process of its own; both do the same
products.

`cpu`: CPU seconds of all micro-batches. `grown`: MiB by which the process grew, after unused memory was given
back to the system.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from fastsft.runtime.imports import KEPT_PRODUCTS
from harness import Run, UnequalResultsError, paired, run_json, write_result

LIBRARIES_OWN = dict.fromkeys(KEPT_PRODUCTS, "1024")


def resident() -> float:
    """MiB that this process holds once its heap has given back what is free."""
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def lengths(args: argparse.Namespace) -> list[int]:
    """Tokens of each micro-batch, the same on both sides."""
    draw = random.Random(0)
    there = draw.sample(range(args.shortest, args.longest), args.lengths or args.micro_batches)
    return [draw.choice(there) for _ in range(args.micro_batches)] if args.lengths else there


def run_side(args: argparse.Namespace) -> dict[str, float]:
    import torch

    torch.set_num_threads(1)
    product = torch.ops.aten.mkldnn_linear
    width, inner = args.width, args.width * 11 // 4
    sizes = [(width, 3 * width), (width, width), (width, 2 * inner), (inner, width)]
    weights = [torch.full((o, i), 0.5).to_mkldnn() for i, o in sizes]
    transposed = [torch.full((i, o), 0.5).to_mkldnn() for i, o in sizes]

    def micro_batch(tokens: int) -> float:
        """Sum over one number of each product."""
        total = 0.0
        for (i, o), forward, backward in zip(sizes, weights, transposed, strict=True):
            rows, gradients = torch.ones(tokens, i).to_mkldnn(), torch.ones(tokens, o).to_mkldnn()
            columns, of_weight = torch.ones(i, tokens).to_mkldnn(), torch.ones(o, tokens).to_mkldnn()
            for _ in range(args.layers):
                results = product(rows, forward), product(gradients, backward), product(of_weight, columns)
            total += sum(float(each.to_dense()[0, 0]) for each in results)
        return total

    micro_batch(args.shortest)
    before, start = resident(), time.process_time()
    total = sum(micro_batch(tokens) for tokens in lengths(args))
    return {"cpu": time.process_time() - start, "grown": resident() - before, "total": total}


def check(baseline: float, ours: float) -> None:
    if baseline != ours:
        raise UnequalResultsError(f"the products add up to {baseline} and {ours}")


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    for name, default in (("width", 256), ("layers", 4), ("micro_batches", 200), ("lengths", 4), ("pairs", 3),
                          ("shortest", 64), ("longest", 2048)):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--name", help="of the recorded result")
    parser.add_argument("--side", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    args = parsed()
    if args.side:
        args.side.write_text(json.dumps(run_side(args)))
        return
    with tempfile.TemporaryDirectory() as folder:

        def side(environment: dict[str, str]) -> Run:
            report = Path(folder) / "report.json"
            command = [sys.executable, *sys.argv, "--side", str(report)]
            metrics: dict[str, Any] = run_json(command, report, env=environment)
            return Run(metrics, evidence=metrics.pop("total"))

        results = paired(
            lambda: side(LIBRARIES_OWN), lambda: side(KEPT_PRODUCTS), pairs=args.pairs, check=check
        )
    settings = {name: value for name, value in vars(args).items() if name not in ("side", "name", "pairs")}
    name = args.name or f"kept_products_{args.width}x{args.layers}_{args.lengths}"
    write_result(name, results, {**settings, "bounds": KEPT_PRODUCTS})


if __name__ == "__main__":
    main()
