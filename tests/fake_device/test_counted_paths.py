"""What a step counts on the paths and in the predictions of docs/gpu.md."""

from __future__ import annotations

import pytest

from fake_device.counted_changes import cases, counted, sums
from fake_device.counted_predictions import predictions

pytestmark = pytest.mark.chaos


def row_of(name: str) -> dict[str, int]:
    ranks, case = cases()[name]
    return sums(counted(case, ranks))


def test_cudnn_computes_recorded_lengths_by_plans_that_are_there() -> None:
    row = row_of("attention")
    # Three micro-batches in two ranges, two passes.
    assert row["cuDNN calls"] == 12 and row["flash calls"] == row["plans"] == 0


def test_backward_passes_go_on_next_to_reductions() -> None:
    """Of a single copy, which the update is the first to need: all of them wait for the end of backward."""
    row = row_of("reductions")
    assert row["next to reductions"] > row["launches"] / 2


def test_formulas_and_counts_predict_the_same_speed() -> None:
    for name, formulas, counts in predictions():
        assert counts.tokens_per_second == pytest.approx(formulas.tokens_per_second, rel=0.01), name
        for term in ("products", "element-wise", "optimizer"):
            assert counts.seconds[term] == pytest.approx(formulas.seconds[term], rel=1e-3), (name, term)
