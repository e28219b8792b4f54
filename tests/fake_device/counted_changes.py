"""Count a step of each path that docs/gpu.md has counts of, and print a table.

usage: python -m fake_device.counted_changes [CASE ...]   (in tests, with PYTHONPATH=support; minutes)

The package that PYTHONPATH names is counted, so that an earlier one can be.
"""

from __future__ import annotations

import json
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from fake_device.models import model_of
from fake_device.running import FakeDevice, run_program

CONFIG: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 16, "vocab_size": 72, "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5, "rope_theta": 1e4, "hidden_act": "silu", "tie_word_embeddings": False,
}  # fmt: skip
BFLOAT16 = {"compute_dtype": "bfloat16"}
LENGTHS = Path(__file__).parents[2] / "benchmarks" / "conversation_lengths.json"
Counts = dict[str, list[int]]


def recorded_lengths(count: int) -> list[int]:
    lengths: list[int] = json.loads(LENGTHS.read_text())["multi_turn"]
    return [min(length, 2047) for length in lengths[:count]]


@cache
def cases() -> dict[str, tuple[int, dict[str, Any]]]:
    """Return the ranks and the case of each path."""
    attention = {
        "config": {**CONFIG, "num_hidden_layers": 1}, "lengths": recorded_lengths(30), "uncounted_steps": 0,
        "micro_batch_tokens": 8192, "cudnn": True, "options": {**BFLOAT16, "recompute": "none"},
    }  # fmt: skip
    generic = {
        "model": model_of("biases", initializer_range=0.08), "lengths": [20] * 32, "micro_batches": 2,
        "uncounted_steps": 2, "options": BFLOAT16,
    }  # fmt: skip
    reductions = {
        "config": {**CONFIG, "num_hidden_layers": 4}, "lengths": [20] * 4, "micro_batches": 2,
        "uncounted_steps": 2,
        "options": {**BFLOAT16, "strategy": "full_shard", "sync_each_batch": False},
    }  # fmt: skip
    return {
        "attention": (1, {**attention, "compiled_before": True}),
        "attention, compiled in the step": (1, attention),
        "generic": (1, generic),
        "reductions": (2, reductions),
    }


def counted(case: dict[str, Any], ranks: int) -> Counts:
    """Return the counts of the first rank's step."""
    with tempfile.TemporaryDirectory() as folder:
        device = FakeDevice(Path(folder, "reports"), schedule="lazy", counts=True, devices=ranks)
        found = run_program(device, "counted_steps", json.dumps({"case": case}), ranks=ranks, seconds=900)
        device.check()
    counts: Counts = found[0]["case"]
    return counts


def sums(counts: Counts) -> dict[str, int]:
    """Return what a table says about a step."""

    def calls(*begins: str) -> int:
        return sum(count[0] for name, count in counts.items() if name.startswith(begins))

    operations = [count for name, count in counts.items() if name.startswith("operation ")]
    return {
        "launches": sum(count[0] for count in operations),
        "bytes": sum(count[1] + count[2] for count in operations),
        "host waits": calls("call cudaStreamSynchronize", "call cudaEventSynchronize"),
        "cudaMalloc": calls("call cudaMalloc", "call cudaHostAlloc"),
        "cuDNN calls": calls("operation cudnn graph"),
        "plans": calls("call cudnn plan"),
        "flash calls": calls("operation flash attention"),
        "waits of streams": calls("call cudaStreamWaitEvent"),
        "next to reductions": calls("next to ncclReduceScatter"),
    }


def main() -> None:
    chosen = {name: case for name, case in cases().items() if name in (sys.argv[1:] or cases())}
    for number, (name, (ranks, case)) in enumerate(chosen.items()):
        row = sums(counted(case, ranks))
        if number == 0:
            print("| path |", " | ".join(row), "|")
            print("|---" * (1 + len(row)) + "|")
        print(f"| {name} |", " | ".join(f"{count:,}" for count in row.values()), "|", flush=True)


if __name__ == "__main__":
    main()
