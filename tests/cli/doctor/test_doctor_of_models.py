"""Models that the doctor refuses: damaged files, another family, a tokenizer that does not fit."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from doctor_patient import Patient


def _remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def _tear(folder: Path) -> None:
    os.truncate(folder / "model.safetensors", (folder / "model.safetensors").stat().st_size - 1)


def _other_family(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "mumba"}))


def _other_sizes(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "intermediate_size": 32}))


def _missing_shard(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    index = {
        "metadata": {"total_size": 1},
        "weight_map": {"lm_head.weight": "model-00001-of-00002.safetensors"},
    }
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def _bad_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.model").write_bytes(b"not a tokenizer")


@pytest.mark.parametrize(
    ("damage", "check", "part", "unchecked"),
    [
        (_remove("config.json"), "model", "config.json", ["weights", "tokenizer", "data", "memory"]),
        (_other_family, "model", "mumba", ["weights"]),
        (_remove("model.safetensors"), "weights", "expected model.safetensors", ["disk space"]),
        (_missing_shard, "weights", "model-00001-of-00002.safetensors", ["disk space"]),
        (_tear, "weights", "model.safetensors", ["disk space"]),
        (_other_sizes, "weights", "expected shape", []),
        (_bad_tokenizer, "tokenizer", "tokenizer.model", ["template", "data"]),
    ],
)
def test_a_damaged_model(
    damage: Callable[[Path], None], check: str, part: str, unchecked: list[str],
    model: Path, patient: Patient,
) -> None:  # fmt: skip
    damage(model)
    found = patient()
    assert patient.status == 1
    assert found[check][0] == "failed" and part in found[check][1] and "-> " in found[check][1], patient.text
    assert all(found[name][0] == "not checked" for name in unchecked), patient.text
    assert found["output"][0] == "ok"


def test_a_template_that_the_tokenizer_cannot_do(patient: Patient) -> None:
    mark, text = patient(mask_policy="spans", template="chatml")["template"]
    assert mark == "failed" and "<|im_end|>" in text


def test_a_model_of_the_hub_is_not_fetched(patient: Patient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    mark, text = patient(model_name_or_path="nobody/nothing")["model"]
    assert patient.status == 1 and mark == "failed" and "fetches nothing" in text
    assert "-> correct the path; of a hub model: hf download nobody/nothing" in text


@pytest.mark.parametrize("engine", ["native", "generic"])
def test_rows_beyond_a_change_of_the_frequencies(engine: str, model: Path, patient: Patient) -> None:
    """As the run itself would end; the other checks go on."""
    factors = {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    config = json.loads((model / "config.json").read_text())
    config |= {"original_max_position_embeddings": 128, "rope_scaling": {"rope_type": "longrope", **factors}}
    (model / "config.json").write_text(json.dumps(config))
    mark, text = patient(engine=engine, model_max_length="129")["model"]
    assert patient.status == 1 and mark == "failed"
    assert text.startswith("--model_max_length 129: beyond 128 tokens this model's rotary frequencies")
    assert "-> lower --model_max_length" in text
    assert patient(engine=engine, model_max_length="128")["model"][0] == "ok" and patient.status == 0


def test_positions_that_are_stretched_are_a_warning(patient: Patient) -> None:
    mark, text = patient(model_max_length="4096")["model"]
    assert patient.status == 0 and mark == "warning"
    assert "--model_max_length 4096 is above the model's 2048 positions" in text
    assert "--model_max_length 2048 leaves the model's positions as they are" in text
