"""--load_best_model_at_end where a run is killed at its end, or its best checkpoint damaged or elsewhere."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from saved_runs import copy, same
from tiny_models import weights_of
from warm_ranks import WarmRanks


@pytest.fixture
def best(short: dict[str, Any]) -> dict[str, Any]:
    """A run of 6 steps whose best evaluation is the one of step 3."""
    return {
        **short, "eval_data_path": short["data_path"], "eval_strategy": "steps", "eval_steps": 3,
        "load_best_model_at_end": True, "metric_for_best_model": "loss", "greater_is_better": True,
        "plot_loss": False,
    }  # fmt: skip


def checkpoints(output: Path) -> list[str]:
    return sorted(path.name for path in output.glob("checkpoint-*"))


@pytest.mark.variants("[2]")
@pytest.mark.parametrize("ranks", [1, 2])
def test_the_last_checkpoint_stays_until_the_model_is_on_disk(
    warm: WarmRanks, best: dict[str, Any], tmp_path: Path, ranks: int
) -> None:
    flags = {**best, "save_total_limit": 1, "per_device_train_batch_size": 4 // ranks}
    fault = ("place", "fastsft.model.model_save:finish_save_in_flight", "kill")
    run = warm.start(flags, tmp_path / "out", ranks, fault=fault)
    assert run.wait(60) == [-signal.SIGKILL] * ranks
    assert checkpoints(tmp_path / "out") == ["checkpoint-3", "checkpoint-6"]
    text = warm.start(flags, tmp_path / "out", ranks).finish()
    assert "{'loss'" not in text and f"loaded the best weights: {tmp_path}/out/checkpoint-3" in text
    assert checkpoints(tmp_path / "out") == ["checkpoint-3"]
    assert same(weights_of(tmp_path / "out"), weights_of(tmp_path / "out" / "checkpoint-3"))
    assert "this run is finished" in warm.start(flags, tmp_path / "out", ranks).finish()


@pytest.mark.variants("[1]")
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_damaged_best_checkpoint_costs_a_line(
    warm: WarmRanks, best: dict[str, Any], tmp_path: Path, ranks: int
) -> None:
    flags, output = {**best, "per_device_train_batch_size": 4 // ranks}, tmp_path / "out"
    fault = ("place", "fastsft.trainer.checkpoints:BestModel.load", "kill")
    assert warm.start(flags, output, ranks, fault=fault).wait(60) == [-signal.SIGKILL] * ranks
    weights = output / "checkpoint-3" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-5] ^= 1
    weights.write_bytes(content)
    text = warm.start(flags, output, ranks).finish()
    line = (
        f"the best weights are not loaded, and those of the last step stay: {output}/checkpoint-3: cannot be "
    )
    assert f"{line}loaded: model.safetensors: " in text
    assert "those of the last step, 6: the best ones could not be loaded" in text
    assert same(weights_of(output), weights_of(output / "checkpoint-6"))
    assert "this run is finished" in warm.start(flags, output, ranks).finish()


@pytest.mark.covering
@pytest.mark.parametrize("of_lora", [False, True])
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_damaged_optimizer_state_leaves_the_best_model(
    warm: WarmRanks, best: dict[str, Any], tmp_path: Path, ranks: int, of_lora: bool
) -> None:
    """The last checkpoint, the only one that can be resumed, stays then."""
    flags = {**best, "per_device_train_batch_size": 4 // ranks, "save_total_limit": 1}
    flags, output = {**flags, **({"lora": True, "lora_r": 1} if of_lora else {})}, tmp_path / "out"
    fault = ("place", "fastsft.trainer.checkpoints:BestModel.load", "kill")
    assert warm.start(flags, output, ranks, fault=fault).wait(60) == [-signal.SIGKILL] * ranks
    state = next((output / "checkpoint-3").glob("optimizer-*"))
    content = bytearray(state.read_bytes())
    content[-5] ^= 1
    state.write_bytes(content)
    text = warm.start(flags, output, ranks).finish()
    assert f"loaded the best weights from its model files: {output}/checkpoint-3, eval_loss " in text
    assert "those of the last step" not in text
    name = "adapter_model.safetensors" if of_lora else "model.safetensors"
    assert (output / name).read_bytes() == (output / "checkpoint-3" / name).read_bytes()
    assert checkpoints(output) == ["checkpoint-3", "checkpoint-6"]


@pytest.mark.variants("[2]")
@pytest.mark.parametrize("ranks", [1, 2])
def test_the_best_checkpoint_of_the_run_that_is_gone_on_from(
    warm: WarmRanks, best: dict[str, Any], tmp_path: Path, ranks: int
) -> None:
    """Where it was when it was written, and next to the checkpoint that the run goes on from."""
    flags = {**best, "per_device_train_batch_size": 4 // ranks, "save_total_limit": 1}
    warm.start({**flags, "save_total_limit": 2}, tmp_path / "first", ranks).finish()
    more = {**flags, "max_steps": 9}
    named = {"resume_from_checkpoint": tmp_path / "first" / "checkpoint-6"}
    text = warm.start({**more, **named}, tmp_path / "second", ranks).finish()
    assert f"loaded the best weights: {tmp_path}/first/checkpoint-3" in text
    assert checkpoints(tmp_path / "second") == ["checkpoint-9"]
    (tmp_path / "first").rename(tmp_path / "moved")
    named = {"resume_from_checkpoint": tmp_path / "moved" / "checkpoint-6"}
    text = warm.start({**more, **named}, tmp_path / "third", ranks).finish()
    assert f"loaded the best weights: {tmp_path}/moved/checkpoint-3" in text
    assert same(weights_of(tmp_path / "third"), weights_of(tmp_path / "moved" / "checkpoint-3"))
    assert checkpoints(tmp_path / "moved") == ["checkpoint-3", "checkpoint-6"]


def test_the_best_checkpoint_among_those_put_aside(
    warm: WarmRanks, best: dict[str, Any], tmp_path: Path
) -> None:
    output = tmp_path / "out"
    warm.start(best, output).finish()
    warm.start({**best, "max_steps": 3, "no_resume": True}, output).finish()
    aside = next(output.glob("previous-*-checkpoint-6"))
    text = warm.start({**best, "max_steps": 9, "resume_from_checkpoint": aside}, output).finish()
    assert f"loaded the best weights: {str(aside)[:-1]}3, eval_loss " in text


def test_other_data_to_evaluate_on_are_told(warm: WarmRanks, best: dict[str, Any], tmp_path: Path) -> None:
    warm.start(best, tmp_path / "out").finish()
    other = tmp_path / "other.json"
    data = Path(best["data_path"])
    other.write_text(json.dumps(json.loads(data.read_text())[:20]))
    for number, (path, is_told) in enumerate(((other, True), (data, False))):
        flags = {**best, "eval_data_path": path, "num_train_epochs": 2}
        output = copy(tmp_path / "out", tmp_path / str(number), 3, 6)
        run = warm.start(flags, output)
        run.finish()
        line = (
            "the data to evaluate on were others: the losses before and from here on cannot be compared, and"
        )
        assert (line in run.all_text()) == is_told
