"""Micro-batches that are padded: rows of like length, and no more places than the budget."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from fastsft import _C

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
