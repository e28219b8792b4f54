"""Order of the rows and how ranks share them, against torch and accelerate."""

import numpy as np
import pytest
import torch
from accelerate.data_loader import BatchSamplerShard, SeedableRandomSampler
from torch.utils.data import BatchSampler

from fastsft import _C


@pytest.mark.parametrize(
    ("seed", "size", "order"),
    [
        (42, 11, [6, 8, 9, 2, 1, 10, 0, 7, 3, 5, 4]),
        (43, 11, [3, 9, 4, 2, 8, 7, 6, 10, 1, 5, 0]),
        (0, 10, [4, 1, 7, 5, 3, 9, 0, 8, 6, 2]),
    ],
)
def test_known_orders(seed, size, order):
    assert _C.epoch_order(size, seed, 0).tolist() == order


@pytest.mark.parametrize("size", [0, 1, 2, 625, 70_001, 200_000])
@pytest.mark.parametrize(
    ("seed", "epoch"), [(42, 0), (42, 3), (2**32 + 5, 1), (2**33 - 1, 1), (2**63 - 2, 1)]
)
def test_order_is_that_of_torch(size, seed, epoch):
    generator = torch.Generator().manual_seed(seed + epoch)
    assert np.array_equal(
        _C.epoch_order(size, seed, epoch), torch.randperm(size, generator=generator).numpy()
    )


@pytest.mark.parametrize("epoch", [0, 1, 7])
def test_order_is_that_of_the_seedable_sampler(epoch):
    sampler = SeedableRandomSampler(data_source=range(50), data_seed=42)
    sampler.set_epoch(epoch)
    assert _C.epoch_order(50, 42, epoch).tolist() == list(sampler)


def test_too_many_rows():
    with pytest.raises(ValueError, match="fewer than 214748364 rows"):
        _C.epoch_order(214748364, 0, 0)


def test_wrapped_batches():
    ranks = [_C.rank_micro_batches(np.arange(17), 4, rank, 3) for rank in range(3)]
    assert [[batch.tolist() for batch in rank] for rank in ranks] == [
        [[0, 1, 2, 3], [12, 13, 14, 15]],
        [[4, 5, 6, 7], [16, 0, 1, 2]],
        [[8, 9, 10, 11], [3, 4, 5, 6]],
    ]


def original_batches(order, batch_size, rank, world_size, drop_last):
    batches = BatchSampler(order, batch_size, drop_last)
    if world_size > 1:
        batches = BatchSamplerShard(batches, world_size, rank, even_batches=True)
    return [list(batch) for batch in batches]


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("batch_size", [1, 2, 3, 4, 8])
def test_batches_are_those_of_accelerate(batch_size, world_size, drop_last):
    for size in range(1, 80):
        order = _C.epoch_order(size, 42, 0)
        count = _C.micro_batch_count(size, batch_size, world_size, drop_last)
        for rank in range(world_size):
            ours = _C.rank_micro_batches(order, batch_size, rank, world_size, drop_last)
            assert len(ours) == count
            assert [batch.tolist() for batch in ours] == original_batches(
                order.tolist(), batch_size, rank, world_size, drop_last
            )


@pytest.mark.parametrize(("batch_size", "rank", "world_size"), [(0, 0, 1), (1, 2, 2), (1, -1, 2), (1, 0, 0)])
def test_impossible_shapes(batch_size, rank, world_size):
    with pytest.raises(ValueError, match=r"rank|batch size"):
        _C.rank_micro_batches(np.arange(4), batch_size, rank, world_size)
