"""One rank of two looks at its data set or changes it: both train what the original trains, or both end."""

from __future__ import annotations

from pathlib import Path

import pytest

import edited_run
from ranks import run_ranks
from trainer_pairs import check_equal

SECONDS = 200.0


def of_ranks(whose: str, how: str, folder: Path) -> list[list[float] | str]:
    return run_ranks(2, edited_run.trained, whose, how, folder, launched=True, seconds=SECONDS)


@pytest.mark.variants("looked at]")
@pytest.mark.parametrize("how", ["looked at", "looked at later", "on_epoch_begin"])
def test_ranks_train_what_the_original_trains(tmp_path: Path, how: str) -> None:
    """In the original each rank reads its own data set."""
    expected, found = (of_ranks(whose, how, tmp_path) for whose in ("theirs", "ours"))
    for mine, other in zip(found, expected, strict=True):
        assert not isinstance(mine, str) and not isinstance(other, str), (mine, other)
        check_equal(mine, other)


def test_data_that_one_rank_changed_before_are_named_on_both(tmp_path: Path) -> None:
    for said in of_ranks("ours", "changed before", tmp_path):
        assert str(said).startswith("ValueError: checksum of the rows of the training data: rank 0 has "), (
            said
        )


@pytest.mark.parametrize(
    ("how", "said", "heard"),
    [
        (
            "on_step_end",
            "ValueError: SupervisedDataset: its class, methods or contents were changed",
            "another rank died or is stuck: look for the first message of another rank",
        ),
        ("failing", "RuntimeError: row ", "reading the data: rank 1 failed: row "),
    ],
)
def test_a_fault_of_one_rank_ends_both(tmp_path: Path, how: str, said: str, heard: str) -> None:
    first, second = of_ranks("ours", how, tmp_path)
    assert str(second).startswith(said), second
    assert isinstance(first, str) and heard in first, first
