"""`--context_parallel_size`: runs whose ranks share conversations have the losses of runs without it."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from saved_runs import same
from tiny_models import weights_of
from warm_ranks import WarmRanks

FLAGS = {
    "eval_strategy": "steps", "eval_steps": 2, "eval_split": 10, "logging_steps": 1, "data_seed": 5,
    "max_steps": 6, "save_steps": 3,
}  # fmt: skip


def of_groups(groups: int, shared: int) -> dict[str, Any]:
    """Return the flags of a run with four conversations a step in `groups` groups of `shared` ranks."""
    return {**FLAGS, "per_device_train_batch_size": 4 // groups, "context_parallel_size": shared}


def losses(output: Path) -> list[dict[str, float]]:
    history = json.loads((output / "trainer_state.json").read_text())["log_history"]
    kept = ("step", "loss", "eval_loss", "grad_norm")
    return [{name: entry[name] for name in kept if name in entry} for entry in history]


def assert_close(output: Path, expected: Path) -> None:
    found, wanted = losses(output), losses(expected)
    assert len(found) == len(wanted) > FLAGS["max_steps"]
    for one, other in zip(found, wanted, strict=True):
        assert one == pytest.approx(other, rel=2e-5)


@pytest.mark.parametrize("groups", [1, 2])
def test_losses_resumes_and_other_numbers_of_ranks(
    warm: WarmRanks, short: dict[str, Any], tmp_path: Path, groups: int
) -> None:
    alone, shared = {**short, **of_groups(groups, 1)}, {**short, **of_groups(groups, 2)}
    warm.train(alone, tmp_path / "alone", groups)
    text = warm.train(shared, tmp_path / "shared", 2 * groups)
    assert "ranks that share it" in " ".join(text.split())
    assert_close(tmp_path / "shared", tmp_path / "alone")

    fault = ("place", "fastsft.trainer.evaluator:Evaluator.evaluate", "kill", -1, 2)  # in step 4
    run = warm.start(shared, tmp_path / "killed", 2 * groups, fault=fault)
    assert run.wait(60) == [-signal.SIGKILL] * 2 * groups
    shutil.copytree(tmp_path / "killed", tmp_path / "elsewhere")
    assert "resumed from" in warm.start(shared, tmp_path / "killed", 2 * groups).finish()
    assert losses(tmp_path / "killed") == losses(tmp_path / "shared")
    assert same(weights_of(tmp_path / "killed"), weights_of(tmp_path / "shared"))
    assert "resumed from" in warm.start(alone, tmp_path / "elsewhere", groups).finish()
    assert_close(tmp_path / "elsewhere", tmp_path / "alone")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"context_parallel_size": 3}, "--context_parallel_size: expected a divisor of the 2 ranks, got 3"),
        ({"context_parallel_size": 2, "engine": "generic"}, "leave it out, or use a model that fastsft"),
        ({"context_parallel_size": 2, "group_by_length": True}, "read item by item, as --group_by_length"),
    ],
    ids=["three of two", "generic", "by length"],
)
def test_refusals(
    warm: WarmRanks, short: dict[str, Any], tmp_path: Path, flags: dict[str, Any], said: str
) -> None:
    run = warm.start({**short, **flags}, tmp_path, 2)
    assert run.wait(60) == [1, 1]
    assert said in " ".join(run.all_text().split())
    assert "Traceback" not in run.all_text() and "Loading data" not in run.all_text()
