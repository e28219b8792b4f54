"""bfloat16 gradients: summed in float32, rounded once a micro-batch, near the float32 curve."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from engines import new_engine, train_step
from fastsft import _C
from ranks import run_ranks
from runs import random_dataset
from shard.test_strategies import ROWS, STRATEGIES, VOCAB, config, initialise


def micro_batches(engine: Any, count: int) -> list[np.ndarray]:
    return np.array_split(np.arange(ROWS)[engine.rank :: engine.world_size], count)


def curve(groups: dict[str, str], strategy: str, grad_dtype: str, tied: bool) -> dict[str, Any]:
    engine = new_engine(config(tied), strategy=strategy, grad_dtype=grad_dtype, **groups)
    initialise(engine)
    dataset, results = random_dataset(ROWS, VOCAB, 40), []
    halves = micro_batches(engine, 2)
    for _ in range(6):
        weights = [np.full(len(half), 1 / 200) for half in halves]
        results.append(train_step(engine, dataset, halves, weights, learning_rate=3e-3, max_grad_norm=1.0))
    return {"losses": [r.loss for r in results], "gradients": engine.memory()["gradients"]}


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("world_size, strategy", [(1, "no_shard"), *((2, name) for name in STRATEGIES)])
def test_the_curve_stays_near_float32(world_size: int, strategy: str, tied: bool) -> None:
    wide = run_ranks(1, curve, "no_shard", "float32", tied)[0]
    for narrow in run_ranks(world_size, curve, strategy, "bfloat16", tied):
        assert narrow["losses"] == pytest.approx(wide["losses"], abs=5e-3)
        assert narrow["losses"] != wide["losses"]


def gradients(groups: dict[str, str], strategy: str, grad_dtype: str) -> dict[str, torch.Tensor]:
    engine = new_engine(config(False), strategy=strategy, grad_dtype=grad_dtype, **groups)
    initialise(engine)
    (rows,) = micro_batches(engine, 1)
    return engine.gradients(random_dataset(ROWS, VOCAB, 40), rows, np.full(len(rows), 1 / 200))[1]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_one_micro_batch_is_rounded_once(strategy: str) -> None:
    """The sum over two ranks is rounded, not its parts."""
    wide = run_ranks(2, gradients, strategy, "float32")[0]
    narrow = run_ranks(2, gradients, strategy, "bfloat16")[0]
    for name, tensor in wide.items():
        assert torch.equal(narrow[name], tensor.bfloat16().float()), name


def test_it_saves_two_bytes_a_parameter() -> None:
    wide, narrow = (run_ranks(1, curve, "no_shard", dtype, False)[0] for dtype in ("float32", "bfloat16"))
    engine = _C.Engine(config(False))
    padded = sum(-(-size // 128) * 128 for size in engine.unit_sizes)
    largest = max(engine.unit_sizes)
    assert wide["gradients"] == 4 * padded
    assert 2 * padded + 8 * largest <= narrow["gradients"] <= 2 * padded + 8 * (largest + 128)


def test_other_dtypes_are_refused() -> None:
    with pytest.raises(ValueError, match='grad_dtype is "float16", expected "float32" or "bfloat16"'):
        new_engine(config(False), grad_dtype="float16")
