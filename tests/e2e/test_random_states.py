"""Python's, numpy's and torch's generators after a resume are those of a run that nothing stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fastsft.runtime.random_state import random_state_name
from saved_runs import copy
from warm_ranks import WarmRanks, spread


@pytest.mark.variants("[2]")
@pytest.mark.parametrize("ranks", [1, 2])
def test_generators_go_on_within_an_epoch_and_between_epochs(
    warm: WarmRanks, short: dict[str, Any], tmp_path: Path, ranks: int
) -> None:
    whole, flags = tmp_path / "whole", {**spread(short, ranks), "num_train_epochs": 2, "plot_loss": False}
    warm.start(flags, whole, ranks).finish()
    for begin in (3, 6):
        output = copy(whole, tmp_path / str(begin), begin)
        assert "resumed from" in warm.start(flags, output, ranks).finish()
        for rank in range(ranks):
            path = Path("checkpoint-12") / random_state_name(rank)
            assert (output / path).read_text() == (whole / path).read_text(), f"from step {begin}, {rank}"
