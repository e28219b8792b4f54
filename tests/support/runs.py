"""Small data sets and engines that several tests share."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import numpy as np
import torch

from fastsft import _C

IGNORE = -100


def spans_of(labels: Sequence[int]) -> list[tuple[int, int]]:
    """Return the spans (begin, end) of targets in `labels`, which are -100 elsewhere."""
    spans, position = [], 0
    for learned, run in groupby(label != IGNORE for label in labels):
        length = len(list(run))
        if learned:
            spans.append((position, position + length))
        position += length
    return spans


def labels_of(dataset: _C.TokenDataset, row: int) -> torch.Tensor:
    """Return the labels of `row` as int64 [length]; -100 at positions that are not learned."""
    ids = torch.from_numpy(dataset.ids(row)).long()
    labels = torch.full_like(ids, IGNORE)
    for begin, end in dataset.learned(row):
        labels[begin:end] = ids[begin:end]
    return labels


def append_labelled(dataset: _C.TokenDataset, ids: Sequence[int], labels: Sequence[int]) -> None:
    assert all(label in (IGNORE, token) for token, label in zip(ids, labels, strict=True))
    dataset.append(np.array(ids, dtype=np.int32), spans_of(labels))


def random_dataset(rows: int, vocab: int, longest: int, seed: int = 0) -> _C.TokenDataset:
    """Make `rows` conversations of 6 to `longest` - 1 tokens with one or two learned spans.

    Every fifth conversation has no target.
    """
    random = np.random.default_rng(seed)
    dataset = _C.TokenDataset()
    for row in range(rows):
        length = int(random.integers(6, longest))
        middle = int(random.integers(2, length - 1))
        spans = (
            [] if row % 5 == 4 else [(1, middle - 1), (middle, length)] if middle > 2 else [(middle, length)]
        )
        dataset.append(random.integers(0, vocab, length).astype(np.int32), spans)
    return dataset
