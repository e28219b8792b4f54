"""Ranks that share the tokens of a micro-batch compute what one rank computes."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch

from engines import new_engine, train_step
from fastsft import _C
from model.test_general_rows import ROWS as ROWS_OF_ALL_KINDS
from model.test_general_rows import dataset_of
from native_families import FAMILIES
from ranks import run_ranks
from runs import random_dataset

SIZES = {
    "vocab_size": 96,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "head_dim": 10,
    "rms_norm_eps": 1e-5,
}
ROWS = 10


def engine_of(config: dict[str, Any], groups: dict[str, str], **options: Any) -> _C.Engine:
    """Make an engine with random weights, no two of a layer alike."""
    engine = new_engine(json.dumps(config), **options, **groups)
    generator = torch.Generator().manual_seed(1)
    for name, tensor in engine.named_parameters().items():
        engine.set_parameter(name, 0.3 + 0.1 * torch.randn(tensor.shape, generator=generator))
    engine.publish()
    return engine


def rows_of_group(engine: _C.Engine, rows: np.ndarray) -> np.ndarray:
    """Return the rows that this rank's group computes, from the rows of all."""
    shared = engine.context_parallel_size
    return rows[engine.rank // shared :: engine.world_size // shared]


def train_shared(
    groups: dict[str, str], config: dict[str, Any], shared: int, options: dict[str, Any]
) -> dict[str, Any]:
    """Return gradients, losses of two steps with two micro-batches, an evaluation, and the weights."""
    engine = engine_of(config, groups, context_parallel_size=shared, **options)
    dataset = random_dataset(ROWS, 96, 30)
    mine = rows_of_group(engine, np.arange(ROWS))
    loss, gradients = engine.gradients(dataset, mine, np.full(len(mine), 1 / 100))
    found: dict[str, Any] = {"loss": loss, "gradients": gradients}
    found["evaluated"] = engine.loss(dataset, mine, np.full(len(mine), 1 / 100))
    steps = []
    for step in range(2):
        mine = rows_of_group(engine, np.random.default_rng(step).permutation(ROWS))
        halves = [mine[: len(mine) // 2], mine[len(mine) // 2 :]]
        weights = [np.full(len(half), 1 / 100) for half in halves]
        result = train_step(
            engine, dataset, halves, weights,
            learning_rate=1e-2, eps=1e-3, weight_decay=0.1, max_grad_norm=0.5,
        )  # fmt: skip
        steps += [result.loss, result.grad_norm]
    return found | {"steps": steps, "weights": engine.named_parameters()}


def check(config: dict[str, Any], ranks: int, shared: int, limit: float = 1e-5, **options: Any) -> None:
    (alone,) = run_ranks(1, train_shared, config, 1, {**options, "strategy": "no_shard"})
    found = run_ranks(ranks, train_shared, config, shared, options, context_size=shared)
    narrow = options.get("compute_dtype") == "bfloat16"
    rel, of_steps = (2e-3, 5e-3) if narrow else (1e-6, 1e-5)
    assert sum(each["evaluated"] for each in found) == pytest.approx(alone["evaluated"], rel=rel)
    for each in found:
        assert each["loss"] == pytest.approx(alone["loss"], rel=rel)
        assert each["steps"] == pytest.approx(alone["steps"], rel=of_steps, abs=2e-6)
        for kind in ("gradients", "weights"):
            # biases of queries and keys have gradients that are small differences of large terms
            least = 0.01 * torch.stack([value.norm() for value in alone[kind].values()]).norm()
            for name, expected in alone[kind].items():
                error = (each[kind][name] - expected).norm() / max(expected.norm(), least)
                assert error <= limit, (kind, name, error)


@pytest.mark.variants("[llama]", "[gemma2]", "[qwen3_moe]")
@pytest.mark.parametrize("family", FAMILIES)
def test_families(family: str) -> None:
    check({**SIZES, **FAMILIES[family]}, 2, 2, strategy="full_shard")


LLAMA = {**SIZES, "model_type": "llama"}


@pytest.mark.parametrize(
    ("ranks", "shared", "keys"),
    [(4, 2, 4), (4, 4, 2), (3, 3, 3), (3, 3, 1), (2, 2, 12)],
    ids=lambda value: str(value),
)
def test_heads_and_ranks(ranks: int, shared: int, keys: int) -> None:
    """Two groups of two ranks; key heads of one rank, of several, and of all ranks."""
    check({**LLAMA, "num_key_value_heads": keys}, ranks, shared, strategy="full_shard")


@pytest.mark.parametrize(
    "options",
    [
        {"strategy": "no_shard", "recompute": "none"},
        {"strategy": "shard_grad_op", "recompute": "gate_up", "tile_tokens": 8},
        {"strategy": "full_shard", "recompute": "block", "offload": True},
        {"strategy": "full_shard", "recompute": "block", "tile_tokens": 8, "sync_each_batch": False},
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
def test_options(options: dict[str, Any]) -> None:
    check(LLAMA, 2, 2, **options)


def test_hybrid_strategy() -> None:
    """A context within a node, and a node within a context."""
    (alone,) = run_ranks(1, train_shared, LLAMA, 1, {"strategy": "no_shard"})
    for shared in (2, 4):
        options = {"strategy": "hybrid_shard"}
        found = run_ranks(4, train_shared, LLAMA, shared, options, node_size=2, context_size=shared)
        for each in found:
            assert each["steps"] == pytest.approx(alone["steps"], rel=1e-5, abs=2e-6)


def test_bfloat16() -> None:
    check(LLAMA, 2, 2, limit=2e-2, strategy="full_shard", compute_dtype="bfloat16")


def dataset_of_lengths(lengths: list[int]) -> _C.TokenDataset:
    """Return rows of which all tokens but the first are learned."""
    generator, dataset = np.random.default_rng(3), _C.TokenDataset()
    for length in lengths:
        dataset.append(
            generator.integers(0, 96, length).astype(np.int32), [(1, length)] if length > 1 else []
        )
    return dataset


def adapters_of(dropout: float) -> _C.AdapterOptions:
    linears = [
        _C.AdapterLinear(f"model.layers.{layer}.{name}", rank=4, scale=2.0)
        for layer in range(int(SIZES["num_hidden_layers"]))
        for name in ("self_attn.q_proj", "self_attn.o_proj", "mlp.down_proj")
    ]
    return _C.AdapterOptions(linears=linears, dropout=dropout)


def gradients_of(
    groups: dict[str, str], lengths: list[int] | None, config: dict[str, Any], dropout: float, shared: int
) -> tuple[float, dict[str, torch.Tensor]]:
    """Return the loss and gradients of rows of these lengths, or of rows of all kinds, by all ranks."""
    rows = dataset_of(ROWS_OF_ALL_KINDS) if lengths is None else dataset_of_lengths(lengths)
    options: dict[str, Any] = {"adapters": adapters_of(dropout)} if dropout else {}
    strategy = "full_shard" if shared > 1 else "no_shard"
    engine = engine_of(config, groups, strategy=strategy, context_parallel_size=shared, **options)
    seed = {"dropout_seed": 7} if dropout else {}
    weights = np.linspace(0.05, 0.15, len(rows))
    return engine.gradients(rows, np.arange(len(rows)), weights, find_packed=True, **seed)


def check_gradients(
    ranks: int, lengths: list[int] | None, config: dict[str, Any] = LLAMA, dropout: float = 0.0
) -> None:
    ((loss, gradients),) = run_ranks(1, gradients_of, lengths, config, dropout, 1)
    assert any(gradient.norm() > 0 for gradient in gradients.values())
    found = run_ranks(ranks, gradients_of, lengths, config, dropout, ranks, context_size=ranks)
    least = 0.01 * max(gradient.norm() for gradient in gradients.values())
    for other_loss, others in found:
        assert other_loss == pytest.approx(loss, rel=1e-6)
        assert others.keys() == gradients.keys()
        for name, expected in gradients.items():
            assert (others[name] - expected).norm() <= 1e-5 * max(expected.norm(), least), name


@pytest.mark.parametrize("lengths", [[2], [3], [1, 2], [5, 1, 2]], ids=str)
def test_fewer_tokens_than_ranks_and_a_few_more(lengths: list[int]) -> None:
    check_gradients(4, lengths)


@pytest.mark.parametrize("family", ["llama", "gemma2", "qwen3_moe"])
def test_packed_rows_masked_tokens_and_own_positions(family: str) -> None:
    check_gradients(2, None, {**SIZES, **FAMILIES[family]})


def test_adapters_drop_the_same_tokens() -> None:
    check_gradients(2, [9, 14, 5], dropout=0.3)
