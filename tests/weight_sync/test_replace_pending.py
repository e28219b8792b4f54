"""replace_pending: a save that has not begun makes room for a newer one, on all ranks or on none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fastsft.weight_sync import fsdp_save_state_dict, layout, read_state_dict
from ranks import run_ranks
from weight_sync_parts import replace_world
from weight_sync_parts.modules import make_engine, make_model
from weight_sync_parts.save_world import LOGGER


def check(job: Path, ranks: list[dict[str, Any]]) -> set[int]:
    """All ranks tell the same; what was not replaced is whole, what was is not there. The steps replaced."""
    assert ranks[0]["waited"] == ranks[1]["waited"] == "nothing"
    assert ranks[0]["tickets"] == ranks[1]["tickets"]
    replaced = set()
    for step, said in enumerate(ranks[0]["tickets"], 1):
        actor = job / f"global_step_{step}" / "actor"
        if said == "nothing":
            weight = read_state_dict(actor, checksums=True)["weight"]
            assert torch.equal(weight, torch.full((8, 8), float(step)))
            continue
        assert said.startswith(f"ReplacedError: saving step {step} to ") and "before it began" in said, said
        assert not (actor / layout.MANIFEST).exists()
        replaced.add(step)
    assert ranks[0]["named"] == len(ranks[0]["tickets"])
    return replaced


def test_a_newer_save_takes_the_place_of_one_that_waits(tmp_path: Path) -> None:
    ranks = run_ranks(2, replace_world.in_order, str(tmp_path))
    assert check(tmp_path, ranks) == {2, 3}
    assert "replaced by step 4" in ranks[0]["tickets"][2]


def test_ranks_of_different_speed_agree(tmp_path: Path) -> None:
    check(tmp_path, run_ranks(2, replace_world.at_random, str(tmp_path), 12))


@pytest.mark.chaos
def test_ranks_of_different_speed_agree_five_hundred_times(tmp_path: Path) -> None:
    ranks = run_ranks(2, replace_world.at_random, str(tmp_path), 500, seconds=600.0)
    assert 10 < len(check(tmp_path, ranks)) < 490
    few = run_ranks(2, replace_world.at_random, str(tmp_path / "few"), 1)
    assert ranks[0]["keys"] == few[0]["keys"]


class Foreign:
    """Trinity's coordinator has no `attach`."""

    def save_async(self, *_: Any, **__: Any) -> None:
        raise AssertionError("nothing may be dispatched")


def test_a_coordinator_that_would_not_wait_is_refused(tmp_path: Path) -> None:
    engine = make_engine(make_model(False), "plain")
    with pytest.raises(ValueError, match="replace_pending: expected fastsft's CheckpointCoordinator"):
        fsdp_save_state_dict(engine, str(tmp_path), 1, Foreign(), LOGGER, replace_pending=True)
