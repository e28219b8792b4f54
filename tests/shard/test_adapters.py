"""Adapters next to a frozen model, under every strategy; peft and one rank judge."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from engines import train_step
from fastsft import _C
from peft_pairs import CASES, PeftPair
from ranks import run_ranks
from tolerances import assert_close

STRATEGIES = list(_C.strategies())
HYBRID = [name for name, within_nodes in _C.strategies().items() if within_nodes]
UNTIED, TIED = "llama, all linears, rsLoRA, ranks that differ", "qwen3, tied, all linears"
HEAD, PARTLY = "llama, MLP biases, the head too", "qwen2, tied, biases of the adapted are trained"


def gradients(groups: dict[str, str], case: str, strategies: list[str]) -> dict[str, Any]:
    results = {}
    for strategy in strategies:
        pair = PeftPair(CASES[case], groups, strategy=strategy)
        results[strategy] = pair.gradients()
    return results


def steps(groups: dict[str, str], case: str, strategy: str, options: dict[str, Any]) -> dict[str, Any]:
    """Two steps of two micro-batches; row r goes to rank r mod W. What is held, and what became of it."""
    pair = PeftPair(CASES[case], groups, strategy=strategy, **options)
    engine, losses = pair.engine, []
    before = engine.named_parameters()
    for step in range(2):
        mine = np.arange(6)[engine.rank :: engine.world_size]
        halves = [mine[: len(mine) // 2], mine[len(mine) // 2 :]]
        result = train_step(
            engine, pair.dataset, halves, [pair.weights[half] for half in halves],
            learning_rate=1e-2, eps=1e-3, weight_decay=0.1, max_grad_norm=0.5, dropout_seed=step,
        )  # fmt: skip
        losses += [result.loss, result.grad_norm]
    digests = {digest.unit: digest.parameters for digest in engine.state_digests()}
    return {
        "losses": losses, "before": before, "after": engine.named_parameters(), "digests": digests,
        "trained": engine.trained_parameters(), "memory": engine.memory(),
    }  # fmt: skip


@pytest.mark.parametrize("case", [UNTIED, TIED, HEAD, PARTLY])
def test_gradients_on_two_ranks_are_those_of_peft(case: str) -> None:
    expected_loss, expected = PeftPair(CASES[case]).expected()
    for result in run_ranks(2, gradients, case, STRATEGIES, node_size=1):
        for strategy, (loss, found) in result.items():
            assert loss == pytest.approx(expected_loss, abs=1e-5), strategy
            assert found.keys() == expected.keys()
            for name, gradient in expected.items():
                assert_close(found[name], gradient, "model", f"{name}, {strategy}")


@pytest.mark.parametrize("case", [UNTIED, PARTLY])
@pytest.mark.parametrize("options", [{}, {"adapters_dropout": 0.3}, {"offload": True}])
def test_steps_on_ranks_are_those_of_one(case: str, options: dict[str, Any]) -> None:
    (alone,) = run_ranks(1, steps, case, "no_shard", options)
    for name, value in alone["after"].items():
        if name not in alone["trained"]:
            assert torch.equal(value, alone["before"][name]), name
        else:
            assert not torch.equal(value, alone["before"][name]), name
    for strategy in [name for name in STRATEGIES if name not in HYBRID]:
        for result in run_ranks(2, steps, case, strategy, options):
            assert result["losses"] == pytest.approx(alone["losses"], rel=1e-5, abs=2e-6), strategy
            assert result["trained"].keys() == alone["trained"].keys()
            for name, value in alone["after"].items():
                assert_close(result["after"][name], value, "model", f"{name}, {strategy}")
            assert {name for name in result["digests"] if name.endswith(".frozen")}


def test_bfloat16_holds_the_frozen_model_once() -> None:
    (wide,) = run_ranks(1, steps, UNTIED, "no_shard", {})
    for strategy in ("no_shard", "full_shard"):
        for result in run_ranks(2, steps, UNTIED, strategy, {"compute_dtype": "bfloat16"}):
            assert result["losses"][0] == pytest.approx(wide["losses"][0], abs=2e-2)
            for name, value in result["trained"].items():
                if name.endswith("lora_A.weight"):
                    moved = value - result["before"][name]
                    assert 0 < moved.norm() < 0.2 * value.norm(), name
            frozen = result["after"]["model.layers.0.mlp.up_proj.weight"]
            assert torch.equal(frozen, frozen.bfloat16().float())
