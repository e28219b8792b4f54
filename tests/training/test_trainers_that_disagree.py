"""Trainers of two ranks that differ in one thing: both are told, by name, ranks and values."""

from __future__ import annotations

from pathlib import Path

import pytest

import disagreeing_run
from ranks import run_ranks
from tiny_models import write_model

SAID = {
    "learning_rate": "--learning_rate: rank 0 has 1.0, rank 1 has 2.0",
    "callbacks": "callbacks: rank 0 has none, rank 1 has Watcher",
    "metrics": "Trainer(compute_metrics=): rank 0 has none, rank 1 has given",
    "evaluation": "Trainer(eval_dataset=): rank 0 has none, rank 1 has given",
    "element": "weights: model.layers.1.mlp.up_proj.weight: rank 0 has [56, 32] torch.float32 ",
    "length": "rows of the training data: rank 0 has 8, rank 1 has 7",
    "resume": "train(resume_from_checkpoint=): rank 0 has none, rank 1 has True",
    "changed": "--max_steps: rank 0 has 4, rank 1 has 3",
    "later_callback": "callbacks: rank 0 has none, rank 1 has Watcher",
    "other_evaluation": "rows of the data of an evaluation: rank 0 has 8, rank 1 has 7",
    "nothing": "trained",
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"), "untied")


@pytest.mark.parametrize("kind", SAID)
def test_both_ranks_are_told(model: Path, tmp_path: Path, kind: str) -> None:
    told = run_ranks(2, disagreeing_run.outcome, kind, model, tmp_path, launched=True, seconds=120)
    assert told[0] == told[1] and told[0].startswith(SAID[kind]), told
