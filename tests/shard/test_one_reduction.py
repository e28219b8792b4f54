"""Gradients that are kept whole and reduced in a step's last micro-batch: once, and to the same curve."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from engines import new_engine, train_step
from ranks import run_ranks
from runs import random_dataset
from shard.test_strategies import (
    HYBRID,
    NODES,
    ROWS,
    STRATEGIES,
    VOCAB,
    alone,
    check_equals_one_rank,
    check_same_bits,
    config,
    initialise,
    padded_sizes,
    train,
)
from shard.test_timeline import LAYERS, Span, check_no_waits, check_reductions_overlap, of, record

SHARDED = [name for name in STRATEGIES if name != "no_shard"]
IN_FLOAT32 = ("float32", "float32")


def once(
    ranks: int, strategy: str, tied: bool, *dtypes: str, offload: bool = False, node_size: int = 0
) -> list[Any]:
    given = (strategy, tied, *(dtypes or IN_FLOAT32), offload, False)
    return run_ranks(ranks, train, *given, node_size=node_size)


@pytest.mark.covering
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("strategy", SHARDED)
@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_equal_one_rank(ranks: int, strategy: str, tied: bool) -> None:
    results = once(ranks, strategy, tied)
    check_equals_one_rank(results, tied)
    check_same_bits(results)


@pytest.mark.covering
@pytest.mark.parametrize("strategy", HYBRID)
@pytest.mark.parametrize(("ranks", "node_size"), NODES)
def test_nodes_equal_one_rank(ranks: int, node_size: int, strategy: str) -> None:
    results = once(ranks, strategy, True, node_size=node_size)
    check_equals_one_rank(results, True)
    check_same_bits(results)


@pytest.mark.parametrize("strategy", SHARDED)
def test_in_bfloat16_and_on_the_host(strategy: str) -> None:
    on_device, on_host = (
        once(2, strategy, False, "bfloat16", "float32", offload=offload)[0] for offload in (False, True)
    )
    assert on_device["losses"] == pytest.approx(alone(False, "bfloat16")["losses"], abs=2e-3)
    check_same_bits([on_device, on_host])


def test_the_same_run_twice_is_bit_identical() -> None:
    check_same_bits([once(2, "full_shard", True)[0], once(2, "full_shard", True)[0]])


@pytest.mark.parametrize("strategy", ["shard_grad_op", "full_shard"])
def test_gradients_take_four_bytes_a_parameter(strategy: str) -> None:
    held = once(2, strategy, False)[0]["memory"]["gradients"]
    assert held == 4 * sum(run_ranks(2, padded_sizes, False)[0])


def reductions(spans: list[Span]) -> list[str]:
    names = [span.name for span in of(spans, "reduce") if "loss" not in span.name]
    return sorted(name.removeprefix("reduce_scatter ") for name in names)


UNITS = sorted(["embedding", "head", *(f"block.{layer}" for layer in range(LAYERS))])


@pytest.mark.parametrize("strategy", ["shard_grad_op", "full_shard"])
def test_every_unit_is_reduced_once_a_step_behind_compute(strategy: str) -> None:
    for spans in run_ranks(2, record, strategy, False, True, 3, False, 1, False):
        assert reductions(spans) == UNITS
        check_reductions_overlap(spans, slice(-1, None))
        assert len(of(spans, "gather", "all_gather block.1")) == (6 if strategy == "full_shard" else 1)
        check_no_waits(spans)


@pytest.mark.parametrize("strategy", HYBRID)
def test_copies_are_summed_once_a_step_behind_compute(strategy: str) -> None:
    for spans in run_ranks(4, record, strategy, False, True, 3, False, 1, False, node_size=2):
        assert reductions(spans) == sorted(UNITS + [f"all_reduce copies of {unit}" for unit in UNITS])
        for layer in range(2, LAYERS):
            compute = of(spans, "compute", f"backward block.{layer - 2}")[-1]
            assert of(spans, "reduce", f"copies of block.{layer}")[0].around(compute)


def test_blocking_waits_for_every_reduction() -> None:
    for spans in run_ranks(2, record, "full_shard", False, True, 2, True, 1, False):
        assert reductions(spans) == UNITS
        with pytest.raises(AssertionError, match="ran without the reduction of block"):
            check_reductions_overlap(spans, slice(-1, None))


def uneven(groups: dict[str, str], sync_each_batch: bool) -> dict[str, torch.Tensor]:
    """Micro-batches of which some are empty, the last one everywhere; the last rank has no rows at all."""
    engine = new_engine(config(True), strategy="full_shard", sync_each_batch=sync_each_batch, **groups)
    initialise(engine)
    busy = max(1, engine.world_size - 1)
    rows = np.arange(ROWS)[engine.rank :: busy] if engine.rank < busy else np.empty(0, dtype=np.int64)
    parts = [rows[:0], *np.array_split(rows, 2), rows[:0]]
    dataset = random_dataset(ROWS, VOCAB, 40)
    for _ in range(2):
        weights = [np.full(len(part), 1 / 200) for part in parts]
        train_step(engine, dataset, parts, weights, learning_rate=1e-2)
    return engine.named_parameters()


def test_empty_micro_batches_and_a_rank_without_rows() -> None:
    (expected,) = run_ranks(1, uneven, True)
    for weights in run_ranks(3, uneven, False):
        for name, weight in expected.items():
            assert (weights[name] - weight).norm() <= 1e-5 * weight.norm(), name


def changed_between_steps(groups: dict[str, str], changes: list[bool]) -> dict[str, torch.Tensor]:
    engine = new_engine(config(False), strategy="full_shard", sync_each_batch=changes[0], **groups)
    initialise(engine)
    dataset, mine = random_dataset(ROWS, VOCAB, 40), np.arange(ROWS)[engine.rank :: engine.world_size]
    halves = [mine[: len(mine) // 2], mine[len(mine) // 2 :]]
    held = []
    for each in changes:
        engine.set_sync_each_batch(each)
        held.append(engine.memory()["gradients"])
        train_step(engine, dataset, halves, [np.full(len(half), 1 / 200) for half in halves],
                   learning_rate=1e-2)  # fmt: skip
    return {"held": torch.tensor(held), **engine.named_parameters()}


def test_an_engine_changes_between_steps() -> None:
    """From one reduction a micro-batch to one a step: other bytes, the same sums."""
    changed, kept = (run_ranks(2, changed_between_steps, given)[0] for given in ([True, False], [True, True]))
    first, second = changed.pop("held").tolist()
    assert first != second and kept.pop("held").tolist() == [first, first]
    for name, weight in kept.items():
        assert (changed[name] - weight).norm() <= 1e-5 * weight.norm(), name


def test_other_gradients_are_refused() -> None:
    with pytest.raises(ValueError, match=r"sync_each_batch is False.*but grad_dtype is not float32"):
        new_engine(config(False), grad_dtype="bfloat16", sync_each_batch=False)
    engine = new_engine(config(False), grad_dtype="bfloat16")
    with pytest.raises(ValueError, match="sync_each_batch is False"):
        engine.set_sync_each_batch(False)
