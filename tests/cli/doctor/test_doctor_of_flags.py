"""What training refuses before it reads data is refused by the doctor, with the same words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from doctor_patient import DATA, Patient
from fastsft import _C

REFUSED: dict[str, tuple[dict[str, str], str]] = {
    "metric": (
        {"metric_for_best_model": "accuracy", "eval_strategy": "epoch", "eval_data_path": str(DATA)},
        "--metric_for_best_model accuracy: expected loss",
    ),
    "best without data": ({"save_strategy": "best", "eval_strategy": "epoch"}, "without --eval_data_path"),
    "best without evaluation": (
        {"save_strategy": "best", "eval_data_path": str(DATA)},
        "--save_strategy best with --eval_strategy no would never save a checkpoint",
    ),
    "schedule": ({"lr_scheduler_type": "warmup_stable_decay"}, "needs num_decay_steps"),
    "option of a schedule": ({"lr_scheduler_kwargs": '{"foo":1}'}, 'has no option "foo"'),
    "split and lazy": ({"overlong": "split", "lazy_preprocess": "True"}, "leave one of them out"),
    "events": ({"report_to": "tensorboard", "logging_dir": "/proc/x"}, "--logging_dir /proc/x: expected"),
}
_CHECKS = ["model", "weights", "tokenizer", "template", "data", "eval data", "output", "checkpoints"]
_REST = ",".join([*_CHECKS, "disk space", "disk rate", "memory", "communication"])


@pytest.mark.parametrize("name", REFUSED)
def test_refused_flags(name: str, patient: Patient) -> None:
    flags, part = REFUSED[name]
    pytest.importorskip(flags.get("report_to", "pytest"))
    mark, text = patient(skip=_REST, **flags)["configuration"]
    assert (mark, patient.status) == ("failed", 1)
    assert part in text and text.count("--") < 20, text


@pytest.mark.parametrize("metric", ["loss", "eval_loss", "eval_runtime"])
def test_a_metric_that_every_evaluation_has(metric: str, patient: Patient) -> None:
    flags = {"eval_strategy": "epoch", "eval_data_path": str(DATA), "save_strategy": "best"}
    found = patient(skip=_REST, metric_for_best_model=metric, **flags)
    assert found["configuration"][0] == "ok", patient.text


def test_an_adapter_that_could_not_be_merged(patient: Patient, model: Path) -> None:
    flags = {"lora": "True", "lora_target_modules": "lm_head", "save_merged": "True"}
    rest = _REST.replace("model,", "", 1)
    assert patient(skip=rest, **flags)["model"][0] == "ok", patient.text
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": True}))
    mark, text = patient(skip=rest, **flags)["model"]
    assert mark == "failed" and "lm_head has an adapter and is tied to the embedding" in text
    assert "change the flags of LoRA" in text


def test_a_merged_model_that_is_there(patient: Patient) -> None:
    flags = {"lora": "True", "save_merged": "True"}
    rest = _REST.replace("model,", "", 1)
    (patient.output / "merged").mkdir(parents=True)
    mark, text = patient(skip=rest, **flags)["model"]
    assert mark == "failed" and "fastsft did not write it" in text
    (patient.output / "merged").rmdir()
    of_a_run = _C.AtomicDirectory(str(patient.output), "merged")
    of_a_run.commit("merged", _C.Manifest(0, 1, "", []))
    assert patient(skip=rest, **flags)["model"][0] == "ok", "the run would replace it"
