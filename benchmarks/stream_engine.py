"""fastsft's engine on a stream of tokenised conversations: our side of bench_peers.py.

usage: python benchmarks/stream_engine.py --stream S --config C --report R --rows 32 --steps 6 ...

Takes the conversations in order, `--rows` a step, cut into micro-batches of `--micro_batch_tokens`, and
writes the same JSON as baselines/stream_trainer.py. Losses are read one step late, as in training.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))
import bench_step
import harness
from fastsft import _C


def read_stream(path: Path) -> tuple[Any, np.ndarray]:
    """The conversations as a data set, and their lengths."""
    stream = np.load(path)
    dataset, ends = _C.TokenDataset(), np.cumsum(stream["lengths"])
    for ids, learned in zip(np.split(stream["ids"], ends[:-1]), stream["learned"], strict=True):
        dataset.append(ids.astype(np.int32), [(len(ids) - int(learned), len(ids))])
    return dataset, stream["lengths"]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    for name in ("stream", "config", "report"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    for name in ("rows", "steps", "longest", "micro_batch_tokens"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--bf16", type=lambda text: text == "True", default=True)
    parser.add_argument("--recompute", default="selective")
    for name in ("grad_dtype", "optim_dtype", "master_dtype"):
        parser.add_argument(f"--{name}", default="float32")
    bench_step.add_fp8(parser)
    return parser.parse_args()


def steps_of(dataset: Any, lengths: np.ndarray, options: argparse.Namespace) -> list[Any]:
    """(micro-batches, loss weights) of every optimizer step."""
    targets, steps = np.asarray(dataset.target_counts()), []
    for first in range(0, options.rows * options.steps, options.rows):
        cut = bench_step.micro_batches(
            lengths[first : first + options.rows].tolist(), options.micro_batch_tokens
        )
        batches = [batch + first for batch in cut]
        share = 1.0 / targets[first : first + options.rows].sum()
        steps.append((batches, [np.full(len(batch), share) for batch in batches]))
    return steps


def main() -> None:
    options = parse()
    dtype = "bfloat16" if options.bf16 else "float32"
    engine = _C.Engine(
        options.config.read_text(), bench_step.state_options(options), device=options.device,
        recompute=options.recompute, num_threads=options.threads, max_positions=options.longest,
    )  # fmt: skip
    bench_step.initialise(engine, options.device)
    dataset, lengths = read_stream(options.stream)
    steps = steps_of(dataset, lengths, options)
    targets = np.asarray(dataset.target_counts())
    flat = [batch for batches, _ in steps for batch in batches]
    engine.reserve(
        micro_batch=(
            max(int(lengths[b].sum()) for b in flat), max(int(targets[b].sum()) for b in flat),
            int(lengths.max()),
        ),
        step=(int(lengths.sum()), int(targets.sum()), max(len(batches) for batches, _ in steps)),
    )  # fmt: skip
    times, results = [time.perf_counter()], []
    for batches, weights in steps:
        engine.begin_step(dataset, batches, weights, learning_rate=1e-6, max_grad_norm=1.0)
        results += engine.take_results(all=False)
        if options.device != "cpu":  # a peer's step ends on the device, too
            torch.cuda.synchronize()
        times.append(time.perf_counter())
    results += engine.take_results(all=True)
    memory = (
        harness.peak_resident_bytes() if options.device == "cpu" else bench_step.peak_memory(options.device)
    )
    report = {
        "losses": [result.loss for result in results], "seconds": np.diff(times).tolist(),
        "peak_memory": memory, "versions": harness.versions(("fastsft", "torch")),
        "dtypes": {
            "compute": dtype, "master": options.master_dtype, "moments": options.optim_dtype,
            "gradients": options.grad_dtype,
        },
        "settings": {key: str(value) for key, value in vars(options).items()},
    }  # fmt: skip
    options.report.write_text(json.dumps(report))


if __name__ == "__main__":
    main()
