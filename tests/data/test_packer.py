"""Packing and padding: every conversation once, budgets kept, work even over ranks."""

from __future__ import annotations

import bisect
import itertools
import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastsft import _C

LENGTHS = st.lists(st.integers(1, 300), min_size=0, max_size=120)
COSTS = [(1.0, 0.0), (1.0, 0.01), (0.0, 1.0)]


def bins_of(lengths: list[int], capacity: int) -> list[list[int]]:
    items, offsets = _C.pack_best_fit(np.array(lengths, dtype=np.int64), capacity)
    return [items[begin:end].tolist() for begin, end in itertools.pairwise(offsets)]


def best_fit_decreasing(lengths: list[int], capacity: int) -> list[int]:
    """The room left in every bin, sorted: the textbook's algorithm on a sorted list."""
    spaces: list[int] = []
    for length in sorted(lengths, reverse=True):
        if length > capacity:
            continue
        at = bisect.bisect_left(spaces, length)
        space = spaces.pop(at) if at < len(spaces) else capacity
        bisect.insort(spaces, space - length)
    return spaces


def cost_of(lengths: list[int], items: list[int], cost: tuple[float, float]) -> float:
    return sum(cost[0] * lengths[i] + cost[1] * lengths[i] ** 2 for i in items)


@given(LENGTHS, st.integers(1, 400))
@settings(max_examples=60, deadline=None)
def test_best_fit_is_the_textbooks(lengths: list[int], capacity: int) -> None:
    bins = bins_of(lengths, capacity)
    assert sorted(i for items in bins for i in items) == list(range(len(lengths)))
    for items in bins:
        assert len(items) == 1 or sum(lengths[i] for i in items) <= capacity
    rooms = sorted(capacity - sum(lengths[i] for i in items) for items in bins)
    assert [room for room in rooms if room >= 0] == best_fit_decreasing(lengths, capacity)


def test_best_fit_over_wide_ranges() -> None:
    """Capacities whose index of free room has one, two, three and four levels."""
    random = np.random.default_rng(0)
    for capacity in (63, 64, 4095, 4096, 262_144, 20_000_000):
        lengths = random.integers(0, capacity + 2, 400).tolist()
        rooms = sorted(capacity - sum(lengths[i] for i in items) for items in bins_of(lengths, capacity))
        assert [room for room in rooms if room >= 0] == best_fit_decreasing(lengths, capacity)


@given(LENGTHS, st.integers(1, 5), st.integers(1, 900), st.sampled_from(COSTS))
@settings(max_examples=80, deadline=None)
def test_a_step_is_cut_completely(
    lengths: list[int], ranks: int, budget: int, cost: tuple[float, float]
) -> None:
    packing = _C.pack_step(lengths, ranks, budget, cost)
    assert packing == _C.pack_step(lengths, ranks, budget, cost)
    assert len(packing) == ranks and len({len(rank) for rank in packing}) == 1
    every = [items for rank in packing for items in rank]
    assert sorted(i for items in every for i in items) == list(range(len(lengths)))
    for items in every:
        assert len(items) <= 1 or sum(lengths[i] for i in items) <= budget
    fewest = len(bins_of(lengths, budget))
    assert len(packing[0]) == max(1, math.ceil(fewest / ranks))


@given(LENGTHS.filter(len), st.integers(1, 5), st.sampled_from(COSTS))
@settings(max_examples=60, deadline=None)
def test_without_a_tight_budget_work_is_even(
    lengths: list[int], ranks: int, cost: tuple[float, float]
) -> None:
    """Graham's bound: no rank has more than the mean and one conversation."""
    packing = _C.pack_step(lengths, ranks, sum(lengths), cost)
    loads = [sum(cost_of(lengths, items, cost) for items in rank) for rank in packing]
    dearest = max(cost_of(lengths, [i], cost) for i in range(len(lengths)))
    assert max(loads) <= sum(loads) / ranks + (1 - 1 / ranks) * dearest + 1e-6


def test_ranks_are_even_under_a_tight_budget() -> None:
    random = np.random.default_rng(1)
    lengths = np.minimum(2048, random.lognormal(6.2, 0.9, 256).astype(np.int64) + 8)
    for budget in (2048, 4096, 8192):
        for cost in ((1.0, 0.0), (1.0, 1e-4)):
            packing = _C.pack_step(lengths, 8, budget, cost)
            loads = [sum(cost_of(lengths.tolist(), items, cost) for items in rank) for rank in packing]
            assert max(loads) <= 1.02 * min(loads), (budget, cost)
            assert _C.balance(packing, lengths, cost) >= 0.9, (budget, cost)


def test_balance_is_the_share_of_time_at_work() -> None:
    assert _C.balance([[[0], [1]], [[2], [3]]], [10, 4, 5, 4]) == pytest.approx(23 / 28)
    assert _C.balance([[[]], [[]]], []) == 1.0


def test_long_conversations_lie_alone() -> None:
    packing = _C.pack_step([50, 9, 8, 70], 3, 20)
    assert sorted(items for rank in packing for items in rank) == [[0], [1, 2], [3]]


def test_micro_batches_of_like_cost_run_together_and_the_largest_first() -> None:
    packing = _C.pack_step([90, 80, 10, 9], 2, 90)
    costs = [[sum([90, 80, 10, 9][i] for i in items) for items in rank] for rank in packing]
    assert [max(pair) for pair in zip(*costs, strict=True)] == sorted(
        (max(pair) for pair in zip(*costs, strict=True)), reverse=True
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: _C.pack_best_fit([1], 0), "capacity of at least 1"),
        (lambda: _C.pack_best_fit([-1], 5), "lengths of at least 0, got -1"),
        (lambda: _C.pack_step([1], 0, 5), "at least 1 rank"),
        (lambda: _C.pack_step([1], 1, 0), "micro_batch_tokens of at least 1"),
        (lambda: _C.pack_step([1], 1, 5, (-1.0, 2.0)), "costs of at least 0"),
    ],
)
def test_bad_requests(call, message) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=message):
        call()


PADDED = (1.0, 0.0, 1.0)


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("budget", [64, 200, 100_000])
def test_every_row_once_and_places_within_the_budget(ranks: int, budget: int) -> None:
    lengths = np.random.default_rng(0).integers(1, 90, size=150)
    packing = _C.pack_step(lengths, ranks, budget, PADDED)
    assert len(packing) == ranks and len({len(batches) for batches in packing}) == 1
    batches = [batch for rank in packing for batch in rank]
    assert sorted(item for batch in batches for item in batch) == list(range(150))
    for batch in filter(None, batches):
        assert len(batch) == 1 or len(batch) * max(lengths[batch]) <= budget
    ranges = sorted((min(lengths[batch]), max(lengths[batch])) for batch in filter(None, batches))
    assert all(end <= begin for (_, end), (begin, _) in pairwise(ranges))


def test_padding_takes_less_than_with_rows_of_all_lengths() -> None:
    lengths = np.asarray([100, *[10] * 50])
    places = [
        sum(len(batch) * max(lengths[batch]) for batch in _C.pack_step(lengths, 1, 300, cost)[0])
        for cost in (PADDED, PADDED[:2])
    ]
    assert places[0] < places[1] / 3


def test_costs_are_two_or_three_numbers() -> None:
    with pytest.raises(ValueError, match="expected 2 or 3 costs, got 1"):
        _C.pack_step(np.ones(3, dtype=np.int64), 1, 8, (1.0,))
