"""Adapters next to a frozen model, under every strategy; peft and one rank judge."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from adapted_models import AdaptedModel
from engines import train_step
from fastsft import _C
from peft_pairs import CASES, PeftPair, adapted_model, random_peft
from ranks import run_ranks
from tolerances import assert_close

STRATEGIES = list(_C.strategies())
HYBRID = [name for name, within_nodes in _C.strategies().items() if within_nodes]
MIXED, TIED = "llama, all linears, rsLoRA, ranks that differ", "qwen3, tied, all linears"
HEAD, PARTLY = "llama, MLP biases, the head too", "qwen2, tied, biases of the adapted are trained"
OPTIONS: list[dict[str, Any]] = [{}, {"adapter_dropout": 0.3}, {"offload": True}]


def gradients(groups: dict[str, str], subjects: list[AdaptedModel]) -> list[dict[str, Any]]:
    return [
        {name: subject.gradients(subject.engine(strategy=name, **groups)) for name in STRATEGIES}
        for subject in subjects
    ]


def test_gradients_on_two_ranks_are_those_of_peft() -> None:
    pairs = [PeftPair(case) for case in (MIXED, TIED, HEAD, PARTLY)]
    expected = [pair.expected() for pair in pairs]
    for results in run_ranks(2, gradients, [pair.subject for pair in pairs], node_size=1):
        for result, (expected_loss, tensors) in zip(results, expected, strict=True):
            for strategy, (loss, found) in result.items():
                assert loss == pytest.approx(expected_loss, abs=1e-5), strategy
                assert found.keys() == tensors.keys()
                for name, gradient in tensors.items():
                    assert_close(found[name], gradient, "model", f"{name}, {strategy}")


def steps(subject: AdaptedModel, options: dict[str, Any]) -> dict[str, Any]:
    """Two steps of two micro-batches; row r goes to rank r mod W."""
    engine, dataset, losses = subject.engine(**options), subject.dataset(), []
    for step in range(2):
        mine = np.arange(6)[engine.rank :: engine.world_size]
        halves = [mine[: len(mine) // 2], mine[len(mine) // 2 :]]
        result = train_step(
            engine, dataset, halves, [subject.weights[half] for half in halves],
            learning_rate=1e-2, eps=1e-3, weight_decay=0.1, max_grad_norm=0.5, dropout_seed=step,
        )  # fmt: skip
        losses += [result.loss, result.grad_norm]
    return {
        "losses": losses, "after": engine.named_parameters(), "trained": engine.trained_parameters(),
        "digests": {digest.unit: digest.parameters for digest in engine.state_digests()},
    }  # fmt: skip


def steps_under_each(groups: dict[str, str], subject: AdaptedModel, strategies: list[str]) -> dict[str, Any]:
    return {
        f"{strategy}, {number}": steps(subject, {"strategy": strategy, **OPTIONS[number], **groups})
        for strategy in strategies
        for number in range(len(OPTIONS))
    }


@pytest.mark.parametrize("case", [MIXED, PARTLY])
def test_steps_on_ranks_are_those_of_one(case: str) -> None:
    subject = adapted_model(random_peft(CASES[case]))
    (alone,) = run_ranks(1, steps_under_each, subject, ["no_shard"])
    for result in alone.values():
        for name, value in result["after"].items():
            same = torch.equal(value, subject.parameters[name])
            assert same == (name not in result["trained"]), name
    assert alone["no_shard, 1"]["losses"] != alone["no_shard, 0"]["losses"] == alone["no_shard, 2"]["losses"]
    strategies = [name for name in STRATEGIES if name not in HYBRID]
    for results in run_ranks(2, steps_under_each, subject, strategies):
        for where, result in results.items():
            expected = alone[f"no_shard, {where[-1]}"]
            assert result["losses"] == pytest.approx(expected["losses"], rel=1e-5, abs=2e-6), where
            assert result["trained"].keys() == expected["trained"].keys()
            for name, value in expected["after"].items():
                assert_close(result["after"][name], value, "model", f"{name}, {where}")
            assert any(unit.endswith(".frozen") for unit in result["digests"])


def narrow_steps(groups: dict[str, str], subject: AdaptedModel) -> list[dict[str, Any]]:
    narrow: dict[str, Any] = {"compute_dtype": "bfloat16", "master_dtype": "split", **groups}
    return [steps(subject, {"strategy": name, **narrow}) for name in ("no_shard", "full_shard")]


def test_bfloat16_holds_the_frozen_model_once() -> None:
    subject = adapted_model(random_peft(CASES[MIXED]))
    wide = steps(subject, {})
    for results in run_ranks(2, narrow_steps, subject):
        for result in results:
            assert result["losses"][0] == pytest.approx(wide["losses"][0], abs=2e-2)
            for name, value in result["trained"].items():
                assert_close(value.bfloat16(), wide["trained"][name].bfloat16(), "model", name)
            for name, value in result["after"].items():
                if name not in result["trained"]:
                    assert torch.equal(value, subject.parameters[name].bfloat16().float()), name
