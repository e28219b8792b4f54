"""Count the operations of optimizer steps on the fake device: kernels, bytes, products and calls of CUDA.

usage: python counted_steps.py CASES

CASES: a JSON object of {name: {"config": a config.json, "lengths": tokens of each conversation,
"micro_batches": count, "uncounted_steps": how many run before the counted step, "options": of the engine,
"adapters": the linear layers that have adapters, which may be left out}}.
Prints a JSON object of each case's counts, by name: [calls, bytes read, bytes written, FLOPs].
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from engines import new_engine, train_step
from fastsft import _C

DEVICE = ctypes.CDLL(str(Path(os.environ["FAKE_DEVICE"]) / "libfake_device.so"))
REPORT = Path(os.environ["FAKE_DEVICE_REPORT"]) / f"counts.{os.getpid()}"


def counts_of(case: dict[str, Any]) -> dict[str, list[int]]:
    linears = [_C.AdapterLinear(name, rank=4, scale=2.0) for name in case.get("adapters", [])]
    engine = new_engine(
        json.dumps(case["config"]), device="cuda:0", adapters=_C.AdapterOptions(linears=linears),
        **case["options"],
    )  # fmt: skip
    dataset, generator = _C.TokenDataset(), np.random.default_rng(0)
    for length in case["lengths"]:
        # The last token is a target only: it is not computed.
        ids = generator.integers(0, case["config"]["vocab_size"], length + 1).astype(np.int32)
        dataset.append(ids, [(0, length + 1)])
    parts = np.array_split(np.arange(len(dataset), dtype=np.int64), case["micro_batches"])
    weights = [np.full(len(part), 1.0 / dataset.target_counts().sum()) for part in parts]
    for step in range(case["uncounted_steps"] + 1):
        if step == case["uncounted_steps"]:
            DEVICE.fake_device_reset_counts()
        train_step(engine, dataset, parts, weights, learning_rate=1e-4, max_grad_norm=1.0)
    torch.cuda.synchronize()
    DEVICE.fake_device_write_counts()
    rows = [line.split("\t") for line in REPORT.read_text().splitlines()]
    return {name: [int(number) for number in numbers] for *numbers, name in rows}


def main() -> None:
    torch.cuda.set_device(0)
    print(json.dumps({name: counts_of(case) for name, case in json.loads(sys.argv[1]).items()}))


if __name__ == "__main__":
    main()
