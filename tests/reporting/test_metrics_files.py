"""Results files and tables equal those of transformers' own functions."""

from __future__ import annotations

import json
import types

import pytest
from transformers import trainer_pt_utils as original

from fastsft.reporting.metrics_files import metrics_format, metrics_table, write_metrics

TRAIN = {
    "train_runtime": 93784.98765, "train_samples_per_second": 12.3456789, "train_steps_per_second": 3.0,
    "total_flos": 123456789012345.0, "train_loss": 1.23456789, "epoch": 3.0, "train_samples": 128,
    "train_mem_cpu_alloc_delta": 5 << 20,
}  # fmt: skip
EVALUATION = {"eval_loss": 2.0000049, "eval_runtime": 0.5099, "epoch": 3.0, "eval_model": "name"}


@pytest.mark.parametrize("metrics", [TRAIN, EVALUATION, {"loss": float("nan")}])
def test_format_and_table(metrics, capsys):
    assert str(metrics_format(metrics)) == str(original.metrics_format(metrics))
    original.log_metrics(types.SimpleNamespace(is_world_process_zero=lambda: True), "train", metrics)
    assert metrics_table("train", metrics) + "\n" == capsys.readouterr().out


@pytest.mark.parametrize("combined", [True, False])
def test_files(tmp_path, combined):
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    theirs.mkdir()
    trainer = types.SimpleNamespace(
        is_world_process_zero=lambda: True, args=types.SimpleNamespace(output_dir=str(theirs))
    )
    for split, metrics in (("train", TRAIN), ("eval", EVALUATION), ("eval", {"eval_loss": 1.0})):
        original.save_metrics(trainer, split, metrics, combined)
        write_metrics(ours, split, metrics, combined=combined)
    assert {p.name: p.read_text() for p in ours.glob("*.json") if not p.name.startswith(".")} == {
        p.name: p.read_text() for p in theirs.iterdir()
    }
    assert (ours / "all_results.json").exists() == combined
    assert json.loads((ours / "eval_results.json").read_text()) == {"eval_loss": 1.0}
