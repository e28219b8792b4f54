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


@pytest.mark.covering
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


NARROW: dict[str, Any] = {"compute_dtype": "bfloat16", "master_dtype": "float32", "optimizer": "sgd"}
FAMILIES = {
    "llama": {},
    "tied": {"tie_word_embeddings": True},
    "biases": {"model_type": "llama", "attention_bias": True, "mlp_bias": True},
    "qwen3": {"model_type": "qwen3"},
    "one block": {"num_hidden_layers": 1},
}


def family(name: str) -> str:
    return config(False, **FAMILIES[name])


def summed(engine: Any, micro_batches: list[np.ndarray]) -> dict[str, torch.Tensor]:
    """What the optimizer gets: a step of plain SGD subtracts it from masters in float32."""
    initialise(engine)
    before = {name: value.clone() for name, value in engine.named_parameters().items()}
    weights = [np.full(len(each), 1 / 20) for each in micro_batches]
    train_step(
        engine, random_dataset(ROWS, VOCAB, 40), micro_batches, weights, learning_rate=1.0, max_grad_norm=0.0
    )
    return {name: before[name] - value for name, value in engine.named_parameters().items()}


@pytest.mark.parametrize("name", FAMILIES)
def test_one_rank_rounds_every_micro_batch_once(name: str) -> None:
    """Its products add to the bfloat16 sum: each micro-batch rounds it once."""
    wide = new_engine(family(name), strategy="no_shard", **NARROW)
    narrow = new_engine(family(name), strategy="no_shard", grad_dtype="bfloat16", **NARROW)
    parts = [np.arange(5, 5), np.arange(5), np.arange(5, 8), np.arange(8, ROWS)]
    expected: dict[str, torch.Tensor] = {}
    largest: dict[str, torch.Tensor] = {}  # magnitude of each sum that was rounded
    for part in parts:
        for tensor, gradient in summed(wide, [part]).items():
            expected[tensor] = (expected.get(tensor, 0.0) + gradient).bfloat16().float()
            largest[tensor] = torch.maximum(largest.get(tensor, gradient.abs()), expected[tensor].abs())
    made = summed(narrow, parts)
    # Sums in float32 have another order here: now and then one is rounded to the neighbour.
    apart = {
        tensor: (made[tensor] - value).abs() / (2.0**-7 * largest[tensor] + 1e-7)
        for tensor, value in expected.items()
    }
    assert max(each.max() for each in apart.values()) <= 2.0
    assert (torch.cat([each.flatten() for each in apart.values()]) > 0.01).float().mean() < 0.01
    again = summed(narrow, parts)
    assert all(torch.equal(again[tensor], value) for tensor, value in made.items())


@pytest.mark.parametrize("name", FAMILIES)
def test_linears_of_one_rank_are_never_whole_in_float32(name: str) -> None:
    engine = new_engine(family(name), strategy="no_shard", grad_dtype="bfloat16", **NARROW)
    linears = dict.fromkeys(range(len(engine.unit_sizes)), 0)
    for tensor, value in engine.named_parameters().items():
        if "_proj.weight" in tensor:
            linears[1 + int(tensor.split(".")[2])] += -(-value.numel() // 128) * 128
    padded = [-(-size // 128) * 128 for size in engine.unit_sizes]
    largest = max(size - linears[unit] for unit, size in enumerate(padded))
    buffers = 3 if name == "tied" else 2
    least = 2 * sum(padded) + 4 * buffers * largest
    # Matrices that are multiplied as one have no gap between them.
    assert least <= engine.memory()["gradients"] <= least + 4 * buffers * 7 * 128


def test_other_dtypes_are_refused() -> None:
    with pytest.raises(ValueError, match='grad_dtype is "float16", expected "float32" or "bfloat16"'):
        new_engine(config(False), grad_dtype="float16")
