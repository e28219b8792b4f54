"""SIGKILL of a run of the generic engine with dropout; the end is that of the whole run, bit by bit.

docs/spec/reliability.md, row R3.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from e2e.test_kills import Whole, trial
from recorded_models import write_recorded
from warm_ranks import OF_GENERIC_RUNS, WarmRanks

DROPOUT = {"resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1}


@pytest.fixture(scope="module")
def whole(warm: WarmRanks, flags: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Whole:
    warm.imports(*OF_GENERIC_RUNS)
    folder = write_recorded("gpt2", tmp_path_factory.mktemp("gpt2"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **DROPOUT}))
    given = {**flags, "model_name_or_path": folder}
    return Whole(warm, tmp_path_factory.mktemp("whole"), given)


@pytest.mark.thorough
@pytest.mark.parametrize(("seed", "kills"), [pytest.param(31, 1, marks=pytest.mark.chaos), (34, 2)])
def test_a_killed_run_with_dropout_ends_as_the_whole_one(
    warm: WarmRanks, whole: Whole, tmp_path: Path, seed: int, kills: int
) -> None:
    """On two ranks, which hold shards."""
    assert trial(warm, whole, tmp_path, 2, seed, kills) == ""
