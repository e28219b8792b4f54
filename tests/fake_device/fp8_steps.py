"""Train a small model with 8-bit linear layers, or compare its planned bytes with the allocated ones.

usage: python fp8_steps.py cpu|cuda|memory|odd CASES

CASES: a JSON object of {name: options of the engine}. Prints a JSON object: losses and gradient norms of each
case's steps, its planned and its allocated bytes, or the error of a product of odd sizes.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import torch

from engines import new_engine, planned_bytes, train_step
from fastsft import _C
from runs import random_dataset

CONFIG: dict[str, Any] = {
    "model_type": "llama", "vocab_size": 80, "hidden_size": 64, "intermediate_size": 112,
    "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "rms_norm_eps": 1e-5,
}  # fmt: skip
# Large enough that the sizes in which torch allocates do not count.
LARGE = {**CONFIG, "hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 3}
ROWS, STEPS, TOKENS = 4, 2, 48
NARROW = {"compute_dtype": "bfloat16", "master_dtype": "split"}


def losses(options: dict[str, Any], device: str) -> dict[str, list[float]]:
    engine, dataset = new_engine(json.dumps(CONFIG), device=device, **NARROW, **options), _data()
    generator = torch.Generator().manual_seed(1)
    for name, shape in engine.parameter_shapes.items():
        noise = torch.randn(shape, generator=generator)
        engine.set_parameter(name, 1 + 0.1 * noise if len(shape) == 1 else 0.1 * noise)
    engine.publish()
    parts = np.array_split(np.arange(ROWS), 2)
    weights = [np.full(len(part), 1 / dataset.target_counts().sum()) for part in parts]
    results = [
        train_step(engine, dataset, parts, weights, learning_rate=5e-3, max_grad_norm=1.0)
        for _ in range(STEPS)
    ]
    return {"losses": [each.loss for each in results], "norms": [each.grad_norm for each in results]}


def _data() -> _C.TokenDataset:
    return random_dataset(ROWS, CONFIG["vocab_size"], TOKENS)


def bytes_of(options: dict[str, Any]) -> tuple[int, int]:
    """Return the planned peak, and the allocated one beside what products keep."""
    config, dataset = json.dumps(LARGE), _C.TokenDataset()
    for row in range(ROWS):
        ids = np.arange(TOKENS + 1, dtype=np.int32) * (row + 3) % CONFIG["vocab_size"]
        dataset.append(ids, [(0, TOKENS + 1)])
    a = torch.ones(16, 16, device="cuda").bfloat16()
    torch.ops.fastsft.gemm(a, a, torch.empty_like(a), False, False, 0.0)  # its workspace stays
    del a
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    tokens = ROWS * TOKENS
    sizes = {"micro_batch": (tokens, tokens, TOKENS), "step": (tokens, tokens, 1)}
    engine = new_engine(config, device="cuda:0", max_positions=TOKENS, **NARROW, **options)
    engine.reserve(**sizes)
    rows, weights = [np.arange(ROWS)], [np.full(ROWS, 1e-3)]
    for _ in range(2):
        train_step(engine, dataset, rows, weights, learning_rate=1e-4)
    allocated = torch.cuda.max_memory_allocated() - before
    plan = planned_bytes(config, on_cpu=False, **sizes, **NARROW, **options)
    return plan.peak + plan.outside, allocated


def odd_product() -> dict[str, str]:
    a = torch.ones(8, 24, device="cuda").to(torch.float8_e4m3fn)
    scales, out = torch.ones(8, device="cuda"), torch.empty(8, 8, device="cuda")
    try:
        torch.ops.fastsft.scaled_gemm(a, scales, a, scales, out, out, 0.0, True, False)
    except ValueError as error:
        return {"error": str(error)}
    return {"error": ""}


def main() -> None:
    kind, cases = sys.argv[1], json.loads(sys.argv[2])
    torch.set_num_threads(1)
    if kind == "odd":
        print(json.dumps(odd_product()))
    elif kind == "memory":
        print(json.dumps({name: bytes_of(options) for name, options in cases.items()}))
    else:
        device = "cuda:0" if kind == "cuda" else "cpu"
        print(json.dumps({name: losses(options, device) for name, options in cases.items()}))


if __name__ == "__main__":
    main()
