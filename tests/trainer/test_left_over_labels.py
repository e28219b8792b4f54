"""Rows that have `labels` and a left-over `label` of a class: transformers' collator judges."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from trainer_pairs import check_equal, item, losses, ours, theirs, unrounded


@pytest.mark.parametrize("as_tensor", [False, True])
def test_labels_win_over_a_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, as_tensor: bool) -> None:
    unrounded(monkeypatch)
    labels = [torch.tensor(row % 3) if as_tensor else row % 3 for row in range(8)]
    rows = [{**item(row), "label": label} for row, label in enumerate(labels)]
    expected = losses(theirs(tmp_path / "theirs", rows))
    check_equal(losses(ours(tmp_path / "ours", rows)), expected)


def test_two_rows_of_labels_are_refused(tmp_path: Path) -> None:
    both = [{**item(row), "label": item(row)["labels"]} for row in range(8)]
    with pytest.raises(ValueError, match="expected one of labels, label, got all of them"):
        ours(tmp_path, both)
