"""Count the operations of optimizer steps on the fake device: kernels, bytes, products and calls of CUDA.

usage: RANK=... WORLD_SIZE=... python counted_steps.py CASES

CASES: a JSON object of {name: {"config": a config.json, "lengths": tokens of each conversation,
"micro_batches": count, "uncounted_steps": how many run before the counted step, "options": of the engine}}.
May be left out: "adapters": the linear layers that have adapters. "micro_batch_tokens": to pack micro-batches
as a run does. "cudnn": True for its attention. "compiled_before": True if their shapes are, as in a run.
"model": the folder of a model that transformers computes.
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
from fake_device.engine_steps import RANK, begin_rank, options_of
from fastsft import _C

DEVICE = ctypes.CDLL(str(Path(os.environ["FAKE_DEVICE"]) / "libfake_device.so"))
REPORT = Path(os.environ["FAKE_DEVICE_REPORT"]) / f"counts.{os.getpid()}"


def dataset_of(lengths: list[int], vocabulary: int) -> Any:
    dataset, generator = _C.TokenDataset(), np.random.default_rng(0)
    for length in lengths:
        # The last token is a target only: it is not computed.
        ids = generator.integers(0, vocabulary, length + 1).astype(np.int32)
        dataset.append(ids, [(0, length + 1)])
    return dataset


def engine_of(case: dict[str, Any]) -> Any:
    options = options_of(case, f"cuda:{RANK}")
    if "model" in case:
        from generic_engines import loaded_generic_engine  # imports transformers, for seconds

        return loaded_generic_engine(Path(case["model"]), rank=RANK, **options)
    linears = [_C.AdapterLinear(name, rank=4, scale=2.0) for name in case.get("adapters", [])]
    adapters = _C.AdapterOptions(linears=linears)
    return new_engine(json.dumps(case["config"]), adapters=adapters, **options)


def micro_batches_of(case: dict[str, Any], dataset: Any, engine: Any) -> tuple[Any, Any]:
    """Return the rows of each micro-batch of a step and their weights."""
    rows = np.arange(len(dataset), dtype=np.int64)
    if "micro_batch_tokens" not in case:
        parts = np.array_split(rows, case["micro_batches"])
        return parts, [np.full(len(part), 1.0 / dataset.target_counts().sum()) for part in parts]
    source = _C.StepSource(
        dataset.lengths(), dataset.target_counts(), batch_size=len(dataset),
        micro_batch_tokens=case["micro_batch_tokens"],
    )  # fmt: skip
    if case.get("compiled_before"):
        engine.compile_attention(source.summary(rows, 1).attention_shapes)
    plan = source.plan(rows, 0, 0)
    return plan.micro_batches, plan.weights


def counts_of(case: dict[str, Any]) -> dict[str, list[int]]:
    engine = engine_of(case)
    engine.use_cudnn(case.get("cudnn", False))
    dataset = dataset_of(case["lengths"], engine.vocab_size)
    parts, weights = micro_batches_of(case, dataset, engine)
    for step in range(case["uncounted_steps"] + 1):
        if step == case["uncounted_steps"]:
            torch.cuda.synchronize()
            DEVICE.fake_device_reset_counts()
        train_step(engine, dataset, parts, weights, learning_rate=1e-4, max_grad_norm=1.0)
    torch.cuda.synchronize()
    DEVICE.fake_device_write_counts()
    rows = [line.split("\t") for line in REPORT.read_text().splitlines()]
    return {name: [int(number) for number in numbers] for *numbers, name in rows}


def main() -> None:
    begin_rank("cuda", REPORT.parent)
    torch.use_deterministic_algorithms(False)  # which fills new memory, and cuDNN computes nothing
    print(json.dumps({name: counts_of(case) for name, case in json.loads(sys.argv[1]).items()}))


if __name__ == "__main__":
    main()
