"""Data sets that are not fastsft's own, as native rows."""

import numpy as np
import pytest
import torch

from fastsft.dataset.token_rows import TokenRows


def item(ids, labels, padding=0):
    return {
        "input_ids": torch.tensor(ids + [0] * padding),
        "labels": torch.tensor(labels + [-100] * padding),
        "attention_mask": torch.tensor([True] * len(ids) + [False] * padding),
    }


def test_items_become_rows_without_padding():
    items = [
        item([5, 6, 7, 8], [-100, 6, -100, 8], 2),
        item([9, 9], [-100, -100], 4),
        item([1, 2, 3], [1, 2, 3], 3),
    ]
    rows = TokenRows.of(items, 512)
    assert rows.lengths.tolist() == [4, 2, 3]
    # Position 0 has nothing before it and never counts.
    assert rows.target_counts.tolist() == [2, 0, 2]
    assert rows.native.ids(0).tolist() == [5, 6, 7, 8]
    assert rows.native.learned(0) == [(1, 2), (3, 4)]
    assert rows.padded_length == 6 and len(rows) == 3


def test_an_unknown_token_inside_a_text_stays():
    masked = item([5, 0, 7], [-100, -100, 7])
    masked["attention_mask"] = torch.tensor([True, False, True])
    assert TokenRows.of([masked], 8).native.ids(0).tolist() == [5, 0, 7]


def test_lists_and_arrays_without_a_mask():
    rows = TokenRows.of([{"input_ids": [1, 2], "labels": np.array([-100, 2])}], 8)
    assert rows.lengths.tolist() == [2] and rows.target_counts.tolist() == [1]


def test_labels_that_are_not_the_ids():
    with pytest.raises(ValueError, match="row 1: expected label 2 to be -100 or the id 7, got 8"):
        TokenRows.of([item([5, 6], [-100, 6]), item([5, 6, 7], [-100, 6, 8])], 8)


def test_left_padding():
    left = item([0, 5, 6], [-100, -100, 6])
    left["attention_mask"] = torch.tensor([False, True, True])
    with pytest.raises(ValueError, match="row 0: padded on the left"):
        TokenRows.of([left], 8)
