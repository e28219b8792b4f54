"""Every model family on two and three ranks computes what it computes on one, under every strategy."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from engines import new_engine, train_step
from fastsft import _C
from native_families import FAMILIES
from ranks import run_ranks
from runs import random_dataset

HYBRID = [name for name, within_nodes in _C.strategies().items() if within_nodes]
STRATEGIES = [name for name in _C.strategies() if name not in HYBRID]
SIZES = {
    "vocab_size": 96,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "rms_norm_eps": 1e-5,
}


def engine_of(family: str, groups: dict[str, str], **options: Any) -> _C.Engine:
    """With random weights; no two tensors of a layer begin alike."""
    engine = new_engine(json.dumps({**SIZES, **FAMILIES[family]}), **options, **groups)
    generator = torch.Generator().manual_seed(1)
    for name, tensor in engine.named_parameters().items():
        engine.set_parameter(name, 0.3 + 0.1 * torch.randn(tensor.shape, generator=generator))
    engine.publish()
    return engine


def train_under_each(groups: dict[str, str], family: str, strategies: list[str]) -> dict[str, Any]:
    """Two steps of two micro-batches; conversation r of the step goes to rank r mod W."""
    dataset, results = random_dataset(10, 96, 30), {}
    for strategy in strategies:
        engine, losses = engine_of(family, groups, strategy=strategy), []
        for step in range(2):
            mine = np.random.default_rng(step).permutation(10)[engine.rank :: engine.world_size]
            halves = [mine[: len(mine) // 2], mine[len(mine) // 2 :]]
            weights = [np.full(len(half), 1 / 100) for half in halves]
            # A large eps: where a gradient is nothing but rounding, AdamW would make a whole step of it.
            result = train_step(
                engine,
                dataset,
                halves,
                weights,
                learning_rate=1e-2,
                eps=1e-3,
                weight_decay=0.1,
                max_grad_norm=0.5,
            )
            losses += [result.loss, result.grad_norm]
        results[strategy] = (losses, engine.named_parameters())
    return results


def test_every_family_has_a_model_here() -> None:
    assert FAMILIES.keys() == _C.model_families().keys()


# Ranks, ranks of a node, strategies: every registered one, hybrid ones on two nodes of two.
SPREADS = [(2, 0, STRATEGIES), (3, 0, STRATEGIES), (4, 2, HYBRID)]


@pytest.mark.variants("[llama]", "[gemma2]", "[phi3]")
@pytest.mark.parametrize("family", FAMILIES)
def test_ranks_equal_one_rank(family: str) -> None:
    (alone,) = run_ranks(1, train_under_each, family, ["no_shard"])
    expected_losses, expected_weights = alone["no_shard"]
    for world_size, node_size, strategies in SPREADS:
        for result in run_ranks(world_size, train_under_each, family, strategies, node_size=node_size):
            assert list(result) == strategies
            for strategy, (losses, weights) in result.items():
                where = f"{strategy} on {world_size} ranks"
                assert losses == pytest.approx(expected_losses, rel=1e-5, abs=2e-6), where
                for name, weight in expected_weights.items():
                    error = (weights[name] - weight).norm() / weight.norm()
                    assert error <= 1e-5, f"{name}, {where}"


@pytest.mark.parametrize("family", FAMILIES)
def test_only_matrices_decay(family: str) -> None:
    """Without labels only what decays moves (docs/spec/trainer_semantics.md, section 10.1)."""
    engine, empty = engine_of(family, {}), np.empty(0, dtype=np.int64)
    before = engine.named_parameters()
    train_step(engine, _C.TokenDataset(), [empty], [empty.astype(float)], learning_rate=0.1, weight_decay=0.5)
    for name, weight in engine.named_parameters().items():
        factor = 1.0 if name.endswith((".bias", "norm.weight")) else 1 - 0.1 * 0.5
        torch.testing.assert_close(weight, factor * before[name], msg=name)
    with torch.device("meta"):
        theirs = AutoModelForCausalLM.from_config(
            AutoConfig.for_model(**{**SIZES, "pad_token_id": 0, **FAMILIES[family]})
        )
    assert before.keys() == dict(theirs.named_parameters()).keys()
