"""After `reserve` a step takes no memory, whatever the sizes of its micro-batches."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from engines import new_engine, planned_bytes, train_step
from fastsft import _C
from ranks import run_ranks
from shard.test_strategies import VOCAB, config

# Micro-batches of a step, each as lengths of its conversations: the first step is the smallest.
STEPS = [
    [[5], [4]],
    [[64], [3, 3]],
    [[10, 50, 40], [60, 40]],
    [[1], [1]],
    [[30] * 3, []],
    [[100], [2]],
    [[20] * 5, [25] * 4],
    [[7], [90, 10]],
    [[99, 1], [100]],
    [[12], [13]],
]
TOKENS, MICRO_BATCHES = 100, 2


class Memory(NamedTuple):
    """What torch's allocator has handed out: bytes now, at the most so far, and in how many pieces."""

    held: int
    peak: int
    pieces: int


def dataset_of(steps: list[list[list[int]]]) -> tuple[_C.TokenDataset, list[list[np.ndarray]]]:
    dataset, rows, shares = _C.TokenDataset(), [], [2, 1, 3]
    for step in steps:
        rows.append([])
        for lengths in step:
            rows[-1].append(np.arange(len(dataset), len(dataset) + len(lengths)))
            for length in lengths:  # all, half or a third of the tokens are learned
                learned = length // shares[len(dataset) % 3]
                ids = (np.arange(length + 1, dtype=np.int32) * 7 + length) % VOCAB
                dataset.append(ids, [(length + 1 - max(learned, 1), length + 1)])
    return dataset, rows


def steps_of(groups: dict[str, str], reserve: bool, options: dict[str, Any]) -> list[Memory]:
    """The meter behind each step; the data set and what Python passes are no tensors."""
    torch.set_num_threads(1)
    dataset, steps = dataset_of(STEPS)
    _C.AllocationMeter.start()
    try:
        engine = new_engine(config(False), num_threads=1, **options, **groups)
        if reserve:
            total = MICRO_BATCHES * TOKENS
            engine.reserve(micro_batch=(TOKENS, TOKENS, TOKENS), step=(total, total, MICRO_BATCHES))
        seen = []
        for micro_batches in steps:
            weights = [np.full(len(rows), 0.01) for rows in micro_batches]
            train_step(engine, dataset, micro_batches, weights, learning_rate=1e-3)
            meter = _C.AllocationMeter
            seen.append(Memory(meter.held(), meter.peak(), meter.count()))
    finally:
        _C.AllocationMeter.stop()
    return seen


def is_flat(seen: list[Memory]) -> bool:
    return all((later.held, later.peak) == (seen[0].held, seen[0].peak) for later in seen[1:])


ALONE = {"gather_group": "", "reduce_group": ""}


@pytest.mark.parametrize("recompute", _C.recompute_policies())
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_one_rank_allocates_nothing(dtype: str, recompute: str) -> None:
    """Not one piece of memory in nine steps; oneDNN's own pads are left out of it by leaving out oneDNN."""
    with torch.backends.mkldnn.flags(enabled=False):  # type: ignore[no-untyped-call]
        seen = steps_of(ALONE, True, {"compute_dtype": dtype, "recompute": recompute})
    assert is_flat(seen) and seen[-1].pieces == seen[0].pieces


@pytest.mark.parametrize("options", [{"tile_tokens": 30}, {"offload_inputs": True, "tile_tokens": 7}])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_long_rows_allocate_nothing(dtype: str, options: dict[str, Any]) -> None:
    with torch.backends.mkldnn.flags(enabled=False):  # type: ignore[no-untyped-call]
        seen = steps_of(ALONE, True, {"compute_dtype": dtype, "recompute": "block", **options})
    assert is_flat(seen) and seen[-1].pieces == seen[0].pieces


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_with_onednn_nothing_stays(dtype: str) -> None:
    """Its pads come and go inside a product."""
    seen = steps_of(ALONE, True, {"compute_dtype": dtype})
    assert {memory.held for memory in seen} == {seen[0].held}


def ranks_of(groups: dict[str, str], options: dict[str, Any]) -> list[Memory]:
    torch.backends.mkldnn.enabled = False  # a process of its own
    return steps_of(groups, True, options)


@pytest.mark.covering
@pytest.mark.parametrize("strategy", _C.strategies())
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_ranks_take_no_more_than_what_gloo_clones(strategy: str, dtype: str) -> None:
    """A gather and a reduction, each beside the last of its kind, which gloo's thread may drop late."""
    nodes = 2 if _C.strategies()[strategy] else 0
    ranks, options = 2 * max(nodes, 1), {"strategy": strategy, "compute_dtype": dtype}
    plan = planned_bytes(
        config(False), world_size=ranks, node_size=nodes, micro_batch=(TOKENS, TOKENS, TOKENS),
        step=(MICRO_BATCHES * TOKENS, MICRO_BATCHES * TOKENS, MICRO_BATCHES), **options,
    )  # fmt: skip
    clones = 4 * plan.parts["collectives"] + _ROUNDING
    for seen in run_ranks(ranks, ranks_of, options, node_size=nodes):
        least = min(memory.held for memory in seen)
        assert max(memory.peak for memory in seen) <= least + clones
        assert strategy != "no_shard" or {memory.held for memory in seen} == {least}


_ROUNDING = 1024  # of malloc, for a handful of pieces


def test_without_reserve_the_meter_sees_growth() -> None:
    seen = steps_of(ALONE, False, {})
    assert not is_flat(seen) and seen[-1].held > seen[0].held and seen[-1].pieces > seen[0].pieces
