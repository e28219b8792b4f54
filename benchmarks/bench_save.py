"""Checkpoints: how long training is blocked, what writing costs the steps meanwhile, and the disk's rate.

    python benchmarks/bench_save.py [--folder DIR] [--rounds 3] [--hidden 512] [--layers 6] [--tokens 512]

Two gloo ranks on this machine, full_shard, float32. In turn: our save behind the training, ours while
training waits, and torch.distributed.checkpoint.async_save. `lost_ms`: what a save costs the training in
all, beside steps without one. `writer_share`: the rate at which our writer makes its bytes durable, beside
the disk's own in the same run: the same files and bytes from both ranks, in two threads, past the page cache
(`direct`) where the file system can, else through it with fsync (`buffered`). `processor_ms`: of our writer,
when nothing else runs.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from harness import RESULTS, hardware, versions
from loopback_ranks import ROOT, run_program


def write_model(folder: Path, options: argparse.Namespace) -> int:
    """A random Llama; returns its number of parameters."""
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(
        LlamaConfig(
            vocab_size=4096, hidden_size=options.hidden, intermediate_size=options.hidden * 11 // 4,
            num_hidden_layers=options.layers, num_attention_heads=8, max_position_embeddings=2048,
        )
    )  # fmt: skip
    model.save_pretrained(folder)
    return sum(parameter.numel() for parameter in model.parameters())


def run_ranks(model: Path, folder: Path, report: Path, options: argparse.Namespace, ranks: int = 2) -> None:
    program = str(ROOT / "benchmarks" / "save_ranks.py")
    counts = ["--rounds", str(options.rounds), "--tokens", str(options.tokens)]
    run_program([program, str(model), str(folder), str(report), *counts], ranks)


def median(rounds: list[dict[str, float]], name: str) -> float:
    return statistics.median(item[name] for item in rounds)


def summary(found: dict[str, Any]) -> dict[str, Any]:
    """Medians over the rounds; times in milliseconds, rates in MB/s."""
    sides = {
        name: {
            "blocked_ms": 1e3 * median(rounds, "blocked"),
            "staging_ms": 1e3 * median(rounds, "staging"),
            "blocked_beyond_staging_ms": 1e3
            * statistics.median(item["blocked"] - item["staging"] for item in rounds),
            "step_ms": 1e3 * median(rounds, "step"),
            "steps_during_the_save": median(rounds, "steps_during"),
            "inflation_of_steps": median(rounds, "inflation"),
            "lost_ms": 1e3 * median(rounds, "lost"),
            "until_durable_ms": 1e3 * median(rounds, "whole"),
        }
        for name, rounds in found["rounds"].items()
    }
    size = found["bytes_of_a_rank"]
    writer, disk = found["writer_seconds"], found["disk_seconds"]
    shares = {
        kind: statistics.median(a / b for a, b in zip(seconds, writer, strict=True))
        for kind, seconds in disk.items()
    }
    return {
        "sides": sides,
        "bytes_of_a_rank": size,
        "disk_mb_per_s_of_a_rank": {k: size / statistics.median(v) / 1e6 for k, v in disk.items()},
        "writer_mb_per_s_of_a_rank": size / statistics.median(writer) / 1e6,
        "processor_ms": 1e3 * statistics.median(found["processor_seconds"]),
        "writer_share_by_way": shares,
        "writer_share": shares.get("direct", shares["buffered"]),
        "file_system": found["file_system"],
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, help="on the disk to measure; default: a temporary one")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--name", default="save")
    options = parser.parse_args()
    import json

    with tempfile.TemporaryDirectory(dir=options.folder) as scratch:
        model, folder, report = (Path(scratch) / name for name in ("model", "out", "report.json"))
        folder.mkdir()
        parameters = write_model(model, options)
        run_ranks(model, folder, report, options)
        result = summary(json.loads(report.read_text()))
    record = {
        "name": options.name,
        "parameters": parameters,
        **result,
        "load_of_the_machine": os.getloadavg()[0],
        "command": " ".join(["python", *sys.argv]),
        "versions": versions(("fastsft", "torch")),
        "hardware": hardware(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }
    (RESULTS / f"{options.name}.json").write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
