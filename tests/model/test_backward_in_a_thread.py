"""The generic engine computes the same if backward() runs in another thread, as it does on a device."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from engines import train_step
from generic_engines import VOCAB, dataset_of, generic_engine, library_model, random_rows
from ranks import run_ranks

SIZES = {
    "vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "intermediate_size": 48, "head_dim": 8,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    "llama": SIZES,
    # gpt2 draws dropout; mixtral calls some modules only.
    "gpt2": {"vocab_size": VOCAB, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
    "mixtral": {**SIZES, "num_local_experts": 4, "num_experts_per_tok": 2},
}


@contextmanager
def backward_in_a_thread() -> Iterator[list[int]]:
    """Run each backward() in a thread of its own; yield a list that gets the threads' ids."""
    backward, ids = torch.Tensor.backward, []

    def run(tensor: torch.Tensor, *args: Any, **options: Any) -> None:
        failures = []

        def work() -> None:
            ids.append(threading.get_ident())
            try:
                backward(tensor, *args, **options)
            except Exception as error:
                failures.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        if failures:
            raise failures[0]

    torch.Tensor.backward = run  # type: ignore[method-assign]
    try:
        yield ids
    finally:
        torch.Tensor.backward = backward  # type: ignore[method-assign]


def trained(groups: dict[str, str], family: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return results and weights of two steps of two micro-batches."""
    engine = generic_engine(library_model(family, **MODELS[family]), **options, **groups)
    dataset = dataset_of(random_rows([9, 5, 12, 7]))
    mine = np.arange(4)[engine.rank :: engine.world_size]
    halves = np.array_split(mine, 2)
    weights = [np.full(len(half), 0.05) for half in halves]
    results = [train_step(engine, dataset, halves, weights, learning_rate=1e-3) for _ in range(2)]
    return {"results": [(r.loss, r.grad_norm) for r in results], "weights": engine.named_parameters()}


def in_both(groups: dict[str, str], family: str, options: dict[str, Any]) -> None:
    here = trained(groups, family, options)
    with backward_in_a_thread() as ids:
        there = trained(groups, family, options)
    assert len(ids) >= 4 and threading.get_ident() not in ids
    assert there["results"] == here["results"]
    assert all(torch.equal(value, there["weights"][name]) for name, value in here["weights"].items())


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("family", MODELS)
def test_alone(family: str, recompute: bool) -> None:
    in_both({}, family, {"recompute": recompute})


@pytest.mark.parametrize("strategy", ["full_shard", "shard_grad_op", "no_shard"])
def test_on_two_ranks(strategy: str) -> None:
    run_ranks(2, in_both, "llama", {"strategy": strategy, "recompute": True})
