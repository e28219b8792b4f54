"""Every strategy on one to four ranks computes what one rank does, and holds what docs/sharding.md says."""

from __future__ import annotations

import functools
import json
from typing import Any

import numpy as np
import pytest
import torch

from engines import new_engine, train_step
from fastsft import _C
from ranks import run_ranks
from runs import random_dataset

STRATEGIES = list(_C.strategies())
HYBRID = [name for name, within_nodes in _C.strategies().items() if within_nodes]
NODES = [(2, 1), (4, 1), (4, 2)]  # ranks, and those of a node; one node of all is the test of every strategy
VOCAB, ROWS, STEPS = 96, 12, 3


def config(tied: bool, layers: int = 3, **changes: Any) -> str:
    fields = {
        "model_type": "llama",
        "vocab_size": VOCAB,
        "hidden_size": 24,
        "intermediate_size": 40,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 6,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": tied,
    }
    return json.dumps({**fields, **changes})


def initialise(engine: _C.Engine) -> None:
    generator = torch.Generator().manual_seed(1)
    for name, tensor in engine.named_parameters().items():
        noise = torch.randn(tensor.shape, generator=generator)
        engine.set_parameter(name, 1 + 0.1 * noise if "norm" in name else 0.1 * noise)
    engine.publish()


def train(
    groups: dict[str, str],
    strategy: str,
    tied: bool,
    dtype: str = "float32",
    grad_dtype: str = "float32",
    offload: bool = False,
    sync_each_batch: bool = True,
) -> dict[str, Any]:
    """Three steps of two micro-batches; conversation r of the step goes to rank r mod W."""
    engine = new_engine(
        config(tied), strategy=strategy, compute_dtype=dtype, grad_dtype=grad_dtype, offload=offload,
        sync_each_batch=sync_each_batch, **groups,
    )  # fmt: skip
    initialise(engine)
    dataset = random_dataset(ROWS, VOCAB, 40)
    losses, norms = [], []
    for step in range(STEPS):
        mine = np.random.default_rng(step).permutation(ROWS)[engine.rank :: engine.world_size]
        halves = [mine[: len(mine) // 2], mine[len(mine) // 2 :]]
        weights = [np.full(len(half), 1 / 200) for half in halves]
        result = train_step(
            engine, dataset, halves, weights, learning_rate=1e-2, weight_decay=0.1, max_grad_norm=0.5
        )
        assert result.finite
        losses.append(result.loss)
        norms.append(result.grad_norm)
    memory = engine.memory()
    return {"losses": losses, "norms": norms, "memory": memory, "weights": engine.named_parameters()}


def relative(actual: torch.Tensor, expected: torch.Tensor) -> float:
    return ((actual - expected).norm() / expected.norm()).item()


@functools.cache
def alone(tied: bool, dtype: str = "float32") -> dict[str, Any]:
    return run_ranks(1, train, "no_shard", tied, dtype)[0]


def check_equals_one_rank(results: list[dict[str, Any]], tied: bool) -> None:
    expected = alone(tied)
    for result in results:
        assert result["losses"] == pytest.approx(expected["losses"], abs=2e-6)
        assert result["norms"] == pytest.approx(expected["norms"], rel=1e-5)
        for name, weight in expected["weights"].items():
            assert relative(result["weights"][name], weight) <= 1e-5, name


@pytest.mark.covering
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_ranks_equal_one_rank(world_size: int, strategy: str, tied: bool) -> None:
    check_equals_one_rank(run_ranks(world_size, train, strategy, tied), tied)


@pytest.mark.covering
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("strategy", HYBRID)
@pytest.mark.parametrize(("world_size", "node_size"), NODES)
def test_nodes_equal_one_rank(world_size: int, node_size: int, strategy: str, tied: bool) -> None:
    """Every rank returns what its own node gathered: the copies agree to the bit."""
    results = run_ranks(world_size, train, strategy, tied, node_size=node_size)
    check_equals_one_rank(results, tied)
    check_same_bits(results)


def check_same_bits(results: list[dict[str, Any]]) -> None:
    first, *others = results
    for other in others:
        assert (other["losses"], other["norms"]) == (first["losses"], first["norms"])
        assert all(torch.equal(other["weights"][k], v) for k, v in first["weights"].items())


@pytest.mark.covering
@pytest.mark.parametrize("grad_dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("strategy", HYBRID)
def test_bfloat16_copies_agree_to_the_bit(strategy: str, grad_dtype: str) -> None:
    results = run_ranks(4, train, strategy, True, "bfloat16", grad_dtype, node_size=2)
    check_same_bits(results)
    assert results[0]["losses"] == pytest.approx(alone(True, "bfloat16")["losses"], abs=3e-3)


@pytest.mark.covering
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_offload_changes_no_bit(strategy: str, dtype: str) -> None:
    on_device, on_host = (
        run_ranks(2, train, strategy, False, dtype, "float32", offload)[0] for offload in (False, True)
    )
    check_same_bits([on_device, on_host])
    state = on_device["memory"]["optimizer"]
    assert (on_device["memory"]["offloaded"], on_host["memory"]["offloaded"]) == (0, state)
    assert 0 < on_host["memory"]["optimizer"] < state


def nodes_apart(groups: dict[str, str]) -> str:
    try:
        new_engine(
            config(False), strategy="hybrid_shard", **groups | {"across_group": groups["gather_group"]}
        )
    except ValueError as error:
        return str(error)
    return ""


def test_nodes_that_do_not_fit_are_refused() -> None:
    for message in run_ranks(2, nodes_apart, node_size=2):
        assert "nodes must be equal numbers of ranks that follow each other" in message


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_bfloat16_ranks_agree_to_the_bit(strategy: str) -> None:
    first, *others = run_ranks(2, train, strategy, False, "bfloat16")
    assert first["losses"] == pytest.approx(alone(False, "bfloat16")["losses"], abs=2e-3)
    check_same_bits([first, *others])


@pytest.mark.variants("[full_shard]", "hybrid_shard_zero2", "no_shard")
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_same_run_twice_is_bit_identical(strategy: str) -> None:
    once, again = run_ranks(2, train, strategy, True)[0], run_ranks(2, train, strategy, True)[0]
    assert once["losses"] == again["losses"]
    assert all(torch.equal(again["weights"][k], v) for k, v in once["weights"].items())


def padded_sizes(groups: dict[str, str], tied: bool) -> list[int]:
    multiple = 128 * 2
    sizes = new_engine(config(tied), strategy="full_shard", **groups).unit_sizes
    return [-(-size // multiple) * multiple for size in sizes]


@pytest.mark.variants("bfloat16")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_memory_follows_the_design(dtype: str) -> None:
    """docs/sharding.md, "Bytes of a rank": P parameters on W ranks, largest unit U (two ranks, untied)."""
    sizes = run_ranks(2, padded_sizes, False)[0]
    p, u, w = sum(sizes), max(sizes), 2
    wide = dtype == "float32"
    expected = {
        "no_shard": (16 if wide else 18) * p,
        "shard_grad_op": (4 * p + 12 * p // w if wide else 2 * p + 16 * p // w) + 8 * u,
        "full_shard": (16 * p // w + 16 * u) if wide else (18 * p // w + 12 * u),
    }
    expected |= {"hybrid_shard": expected["full_shard"], "hybrid_shard_zero2": expected["shard_grad_op"]}
    assert expected.keys() == set(STRATEGIES)
    for strategy, size in expected.items():
        ranks, node_size = (4, 2) if strategy in HYBRID else (2, 0)  # P/W: over the ranks of a node
        memory = run_ranks(ranks, train, strategy, False, dtype, node_size=node_size)[0]["memory"]
        held = sum(value for key, value in memory.items() if key not in ("activations", "batches"))
        # the range under reduction; a replicated unit is padded for one rank only
        extra = 4 * u // w if strategy != "no_shard" else 0
        assert abs(held - size - extra) <= 16 * 128 * len(sizes), (strategy, memory, size)


def one_layer_with_an_idle_rank(groups: dict[str, str], tied: bool) -> dict[str, Any]:
    """One block, so that prefetch and release meet embedding and head at once; the last rank has no rows."""
    engine = new_engine(config(tied, layers=1), strategy="full_shard", **groups)
    initialise(engine)
    busy = max(1, engine.world_size - 1)
    rows = np.arange(ROWS)[engine.rank :: busy] if engine.rank < busy else np.empty(0, dtype=np.int64)
    dataset, thirds = random_dataset(ROWS, VOCAB, 40), np.array_split(rows, 3)
    weights = [np.full(len(third), 1 / 200) for third in thirds]
    result = train_step(engine, dataset, thirds, weights, learning_rate=1e-2)
    return {"loss": result.loss, "weights": engine.named_parameters()}


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_one_layer_and_an_idle_rank(tied: bool) -> None:
    (expected,) = run_ranks(1, one_layer_with_an_idle_rank, tied)
    for result in run_ranks(3, one_layer_with_an_idle_rank, tied):
        assert result["loss"] == pytest.approx(expected["loss"], abs=2e-6)
        for name, weight in expected["weights"].items():
            assert relative(result["weights"][name], weight) <= 1e-5, name


def one_rank_meets_a_bad_id(groups: dict[str, str]) -> list[str]:
    engine = new_engine(config(False), strategy="no_shard", **groups)
    dataset, messages = random_dataset(2, VOCAB, 20), []
    dataset.append(np.array([1, VOCAB, 3], dtype=np.int32), [(1, 3)])
    if engine.rank == 1:
        for _ in range(2):
            try:
                train_step(engine, dataset, [np.array([2])], [np.ones(1)], learning_rate=0.1)
            except (ValueError, RuntimeError) as error:
                messages.append(str(error))
    return messages


def test_after_an_error_on_one_rank_its_engine_refuses_to_go_on() -> None:
    """Its next collective would meet the half-done step of the others."""
    _, messages = run_ranks(2, one_rank_meets_a_bad_id)
    assert "not in the model's vocabulary" in messages[0] and "failed half way" in messages[1]


def whole_group_masked(groups: dict[str, str]) -> dict[str, Any]:
    engine = new_engine(config(False), strategy="full_shard", **groups)
    initialise(engine)
    before = engine.named_parameters()
    empty = np.empty(0, dtype=np.int64)
    result = train_step(
        engine, _C.TokenDataset(), [empty], [empty.astype(float)], learning_rate=0.1, weight_decay=0.5
    )
    after = engine.named_parameters()
    return {"result": (result.loss, result.grad_norm, result.finite), "before": before, "after": after}


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_step_without_labels_decays_and_moves_nothing_else(world_size: int) -> None:
    for rank in run_ranks(world_size, whole_group_masked):
        assert rank["result"] == (0.0, 0.0, True)
        for name, weight in rank["before"].items():
            factor = 1.0 if "norm" in name else 1 - 0.1 * 0.5
            torch.testing.assert_close(rank["after"][name], factor * weight)


def test_a_step_that_is_not_finite_changes_nothing() -> None:
    engine = _C.Engine(config(False))
    initialise(engine)
    broken = engine.named_parameters()["model.norm.weight"]
    broken[0] = torch.nan
    engine.set_parameter("model.norm.weight", broken)
    before, dataset = engine.named_parameters(), random_dataset(4, VOCAB, 20)
    result = train_step(engine, dataset, [np.arange(4)], [np.ones(4)], learning_rate=0.1)
    assert not result.finite and engine.step_count == 0
    for name, weight in engine.named_parameters().items():
        assert torch.equal(weight.isnan(), before[name].isnan())
        assert torch.equal(weight.nan_to_num(), before[name].nan_to_num())


def test_kernels_use_the_threads_of_torch() -> None:
    """A second OpenMP runtime would leave at::parallel_for on one thread without a word."""
    assert _C.parallel_threads(2) == 2


def test_unknown_names_say_what_is_known() -> None:
    with pytest.raises(
        ValueError, match='unknown sharding strategy "zero9"; known: ' + ", ".join(STRATEGIES)
    ):
        new_engine(config(False), strategy="zero9")
    with pytest.raises(
        ValueError, match='unknown recompute policy "some"; known: none, selective, gate_up, block'
    ):
        _C.Engine(config(False), recompute="some")
