"""A run that is killed while it saves its model: the next start writes the files of results, too."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from warm_ranks import WarmRanks


def results(output: Path, split: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((output / f"{split}_results.json").read_text())
    return content


@pytest.mark.variants("[True]")
@pytest.mark.parametrize("extended", [False, True])
def test_results_are_those_of_the_model(
    warm: WarmRanks, short: dict[str, Any], tmp_path: Path, extended: bool
) -> None:
    output = tmp_path / "out"
    flags = {**short, "eval_data_path": short["data_path"], "eval_strategy": "epoch", "plot_loss": False}
    if extended:
        warm.start(flags, output).finish()
    flags = {**flags, "num_train_epochs": 2}
    warm.start(flags, tmp_path / "whole").finish()
    fault = ("place", "fastsft.model.model_save:finish_save_in_flight", "kill")
    assert warm.start(flags, output, fault=fault).wait(60) == [-signal.SIGKILL]
    assert "{'loss'" not in warm.start(flags, output).finish()
    for split, name in (("train", "train_loss"), ("eval", "eval_loss")):
        found, whole = results(output, split), results(tmp_path / "whole", split)
        assert results(output, "all") | found == results(output, "all")
        assert found["epoch"] == whole["epoch"] == 2 and found.keys() == whole.keys()
        assert (
            extended or found[name] == whole[name]
        )  # the first epoch of an extended run had its own schedule


def test_results_of_who_trained_stay(warm: WarmRanks, short: dict[str, Any], tmp_path: Path) -> None:
    output, flags = tmp_path / "out", {**short, "plot_loss": False}
    warm.start(flags, output).finish()
    before = results(output, "train")
    (output / "model.safetensors").unlink()
    assert "{'loss'" not in warm.start(flags, output).finish()
    assert results(output, "train") == before and "train_runtime" in before
