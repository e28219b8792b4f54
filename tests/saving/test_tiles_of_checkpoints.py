"""A resumed run keeps the tiles of its checkpoint, with which it gives the same bits."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from fastsft import saving
from fastsft.planning import plan_request
from fastsft.trainer import planner
from saved_runs import copy, same
from saving_run import make_trainer

Weights = dict[str, torch.Tensor]
TILE = 6


def train(model: Path, output: Path, **flags: Any) -> tuple[Weights, int, int]:
    """Train to the end, from a checkpoint if there is one; return weights, tiles, and planned bytes."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer = make_trainer(model, output, **{"recompute": "block", **flags})
        trainer.train(resume_from_checkpoint=saving.newest_checkpoint(output))
    plan = trainer._run.planner.memory_plan
    assert plan and trainer.engine
    return trainer.engine.named_parameters(), trainer._run.planner.tile_tokens, plan.total


def test_tiles_are_kept(model: Path, tmp_path: Path) -> None:
    tiled, _, _ = train(model, tmp_path / "tiled", tile_tokens=TILE)
    whole, tiles, _ = train(model, tmp_path / "whole")
    assert tiles == 0 and not same(tiled, whole)
    state = json.loads((tmp_path / "tiled" / "checkpoint-2" / "fastsft_state.json").read_text())
    assert state["tile_tokens"] == TILE
    again, tiles, _ = train(model, copy(tmp_path / "tiled", tmp_path / "again", 2))
    assert tiles == TILE and same(again, tiled)
    other, tiles, _ = train(model, copy(tmp_path / "tiled", tmp_path / "other", 2), tile_tokens=0)
    assert tiles == 0 and not same(other, tiled)
    kept, tiles, _ = train(model, copy(tmp_path / "tiled", tmp_path / "policy", 2), recompute="none")
    assert tiles == TILE and same(kept, tiled)


def test_what_does_not_fit_with_the_tiles_of_the_checkpoint_is_refused(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, _, whole = train(model, tmp_path / "whole", micro_batch_tokens=40)
    monkeypatch.setitem(plan_request.TILE_TOKENS, "cpu", TILE)
    monkeypatch.setattr(planner, "rank_memory", lambda device: whole - 1)
    _, tiles, less = train(model, tmp_path / "tiled", micro_batch_tokens=40)
    assert tiles == TILE and less < whole
    message = r"does not fit.*another --micro_batch_tokens or --tile_tokens rounds differently"
    with pytest.raises(ValueError, match=message):
        train(model, copy(tmp_path / "whole", tmp_path / "refused", 2), micro_batch_tokens=40)
    _, tiles, _ = train(
        model, copy(tmp_path / "whole", tmp_path / "other", 2), micro_batch_tokens=40, tile_tokens=TILE
    )
    assert tiles == TILE
