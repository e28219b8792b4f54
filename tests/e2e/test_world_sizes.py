"""A checkpoint of one number of ranks is resumed by another: same state, same data, same curve.

docs/spec/reliability.md, row R9.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from warm_ranks import WarmRanks, losses

GLOBAL_BATCH = 24
STEP, STEPS = 3, 6  # 48 conversations: two steps an epoch
SIZES = (1, 2, 3, 4, 8)


def flags_of(flags: dict[str, Any], ranks: int, **options: Any) -> dict[str, Any]:
    sharded = {"fsdp": "full_shard"} if ranks > 1 else {}
    return {
        **flags, "num_train_epochs": 3, "save_steps": STEP, "per_device_train_batch_size": 1,
        "gradient_accumulation_steps": GLOBAL_BATCH // ranks, **sharded, **options,
    }  # fmt: skip


def state_of(folder: Path) -> dict[str, torch.Tensor]:
    """Whole tensors of a training state that any number of ranks wrote."""
    parts = [load_file(path) for path in sorted(folder.glob("optimizer-rank-*.safetensors"))]
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def rows_of(folder: Path, ranks: int) -> list[list[int]]:
    """Rows of each step, over all ranks."""
    steps = [json.loads((folder / f"rows-{rank}.json").read_text()) for rank in range(ranks)]
    return [sorted(row for part in step for row in part) for step in zip(*steps, strict=True)]


class FirstRuns:
    """The uninterrupted run of each number of ranks, made when it is asked for."""

    def __init__(self, warm: WarmRanks, folder: Path, flags: dict[str, Any], **options: Any) -> None:
        self._warm, self._folder, self._flags, self._options = warm, folder, flags, options

    def of(self, ranks: int) -> Path:
        folder = self._folder / str(ranks)
        if not folder.exists():
            folder.mkdir()
            given = flags_of(self._flags, ranks, **self._options)
            self._warm.start(given, folder / "out", ranks, ("record", str(folder))).finish(240)
        return folder

    def resume(self, saved_by: int, ranks: int, output: Path, **options: Any) -> Any:
        """The run of `ranks` that goes on from the checkpoint in the middle of the first run, under way."""
        name = f"checkpoint-{STEP}"
        shutil.copytree(self.of(saved_by) / "out" / name, output / "out" / name)
        given = {**flags_of(self._flags, ranks, **self._options), **options}
        return self._warm.start(given, output / "out", ranks, ("record", str(output)))


@pytest.fixture(scope="module")
def first(warm: WarmRanks, flags: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> FirstRuns:
    return FirstRuns(warm, tmp_path_factory.mktemp("first"), flags)


@pytest.fixture(scope="module")
def first_bf16(warm: WarmRanks, flags: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> FirstRuns:
    return FirstRuns(warm, tmp_path_factory.mktemp("bf16"), flags, bf16=True)


def check_pair(first: FirstRuns, saved_by: int, ranks: int, output: Path, tolerance: float) -> None:
    text = first.resume(saved_by, ranks, output).finish(240)
    assert f"step {STEP} of {STEPS}, epoch 1.5 after 24 conversations of it" in text
    ours, saved = state_of(output), state_of(first.of(saved_by) / "out" / f"checkpoint-{STEP}")
    assert ours.keys() == saved.keys() and all(torch.equal(ours[name], saved[name]) for name in saved)
    assert rows_of(output, ranks) == rows_of(first.of(saved_by), saved_by)[STEP:]
    whole, resumed = losses(first.of(saved_by) / "out"), losses(output / "out")
    for step in range(STEP + 1, STEPS + 1):
        assert abs(resumed[step] - whole[step]) <= tolerance * whole[step], (step, resumed[step], whole[step])


@pytest.mark.variants("4-3", "4-1")
@pytest.mark.parametrize(("saved_by", "ranks"), [(4, 3), (4, 1), (3, 4)])
def test_another_number_of_ranks_continues_the_curve(
    first: FirstRuns, tmp_path: Path, saved_by: int, ranks: int
) -> None:
    check_pair(first, saved_by, ranks, tmp_path, 1e-6)


def test_another_global_batch_stops_and_names_what_restores_it(first: FirstRuns, tmp_path: Path) -> None:
    run = first.resume(4, 3, tmp_path, gradient_accumulation_steps=6)
    assert run.wait(60) == [1, 1, 1]
    for rank in range(3):
        assert (
            "the global batch was 24 conversations, now it is 18; --gradient_accumulation_steps 8 restores it"
            in run.text(rank, "err")
        )
    assert "Traceback" not in run.all_text()
    assert sorted(path.name for path in (tmp_path / "out").glob("checkpoint-*")) == [f"checkpoint-{STEP}"]


@pytest.mark.chaos
@pytest.mark.parametrize("ranks", SIZES)
@pytest.mark.parametrize("saved_by", SIZES)
def test_all_pairs(first: FirstRuns, tmp_path: Path, saved_by: int, ranks: int) -> None:
    check_pair(first, saved_by, ranks, tmp_path, 1e-6)


@pytest.mark.chaos
@pytest.mark.parametrize(("saved_by", "ranks"), [(1, 3), (2, 8), (3, 4), (4, 1), (8, 2)])
def test_bfloat16_pairs(first_bf16: FirstRuns, tmp_path: Path, saved_by: int, ranks: int) -> None:
    check_pair(first_bf16, saved_by, ranks, tmp_path, 2e-3)
