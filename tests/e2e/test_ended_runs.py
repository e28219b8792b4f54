"""A run that ended, started again: with its own arguments it is finished, with others it says so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from warm_ranks import WarmRanks, weights_digest


def test_other_arguments_do_not_pass_for_those_that_trained(
    warm: WarmRanks, short: dict[str, Any], tmp_path: Path
) -> None:
    flags, output = {**short, "max_steps": 2, "save_steps": 2, "plot_loss": False}, tmp_path / "out"
    warm.start(flags, output).finish()
    first, asked = weights_digest(output), (output / "training_args.json").read_text()
    for change, reason in (
        ({"learning_rate": 0.5}, "a run with --learning_rate 0.002 ended here at step 2, and now it is 0.5"),
        ({"max_grad_norm": 0.5}, "a run with --max_grad_norm 1.0 ended here at step 2, and now it is 0.5"),
        ({"max_steps": 1}, "a run ended here at step 2, and now 1 are asked for"),
    ):
        run = warm.start({**flags, **change}, output)
        assert run.wait(60) == [1]
        assert f"{reason}, so nothing would be trained; --no_resume True trains again" in run.all_text()
    assert (output / "training_args.json").read_text() == asked and weights_digest(output) == first
    assert "this run is finished" in warm.start(flags, output).finish()
    assert "step 3/3" in warm.start({**flags, "max_steps": 3}, output).finish()
    warm.start({**flags, "learning_rate": 0.5, "no_resume": True}, output).finish()
    assert json.loads((output / "training_args.json").read_text())["learning_rate"] == 0.5
    assert weights_digest(output) != first


def test_an_output_directory_is_no_checkpoint(warm: WarmRanks, short: dict[str, Any], tmp_path: Path) -> None:
    flags = {**short, "max_steps": 2, "save_steps": 1}
    warm.start(flags, tmp_path / "out").finish()
    run = warm.start({**flags, "resume_from_checkpoint": tmp_path / "out"}, tmp_path / "other")
    assert run.wait(60) == [1]
    assert f"name a checkpoint in it ({tmp_path / 'out' / 'checkpoint-2'}), or give it" in run.all_text()


def test_data_to_evaluate_on_that_nothing_asks_for(
    warm: WarmRanks, short: dict[str, Any], tmp_path: Path
) -> None:
    flags = {**short, "max_steps": 1, "save_strategy": "no", "eval_data_path": short["data_path"]}
    run = warm.start(flags, tmp_path / "out")
    run.finish()
    assert "there is data to evaluate on, and nothing evaluates on it" in run.all_text()
    run = warm.start({**flags, "eval_strategy": "epoch"}, tmp_path / "other")
    run.finish()
    assert "nothing evaluates on it" not in run.all_text()


@pytest.mark.variants("[1]")
@pytest.mark.parametrize("ranks", [1, 2])
def test_fewer_steps_than_were_trained_are_refused(
    warm: WarmRanks, short: dict[str, Any], tmp_path: Path, ranks: int
) -> None:
    """Of a run that has not ended: its checkpoint is not the model of fewer steps."""
    output = tmp_path / "out"
    flags = {**short, "per_device_train_batch_size": 4 // ranks, "save_steps": 2}
    fault = ("place", "fastsft.model.model_save:finish_save_in_flight", "kill")
    assert warm.start({**flags, "max_steps": 4}, output, ranks, fault=fault).wait(60) == [-9] * ranks
    for fewer in ({"max_steps": 3}, {"num_train_epochs": 0.5}):
        run = warm.start({**flags, **fewer}, output, ranks)
        assert run.wait(60) == [1] * ranks
        assert (
            f"{output}/checkpoint-4: it is of step 4, and now 3 are asked for, so nothing" in run.all_text()
        )
    assert not (output / "model.safetensors").exists()
    named = {"max_steps": 3, "resume_from_checkpoint": output / "checkpoint-2"}
    assert "step 3/3" in warm.start({**flags, **named}, output, ranks).finish()
    assert (output / "model.safetensors").exists()
