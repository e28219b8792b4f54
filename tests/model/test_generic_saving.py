"""Models of the generic engine: what is saved, resumed and sent, next to transformers' own files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from fastsft.arguments import TrainingArguments
from fastsft.trainer import Trainer
from fastsft.weight_sync import FastsftEngine
from generic_engines import by_files, library_model, random_rows

SMALL = {"vocab_size": 96, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
BLOCKS = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
FAMILIES: dict[str, dict[str, Any]] = {
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},  # tied, with dropout
    "bloom": {"hidden_size": 32, "n_layer": 2, "n_head": 4, "hidden_dropout": 0.1},  # ALiBi
    "mixtral": {
        **BLOCKS, "num_key_value_heads": 2, "intermediate_size": 48, "num_local_experts": 4,
        "attention_dropout": 0.1,
    },
}  # fmt: skip


def trained(model: Path, output: Path, steps: int = 4, **changes: Any) -> Trainer:
    """A run over eight rows that saves every second step."""
    rows = [
        {"input_ids": torch.tensor(ids), "labels": torch.tensor([-100] * begin + ids[begin:end])}
        for ids, (begin, end) in random_rows([9, 5, 12, 7, 8, 6, 11, 10])
    ]
    args = TrainingArguments(
        output_dir=str(output), use_cpu=True, per_device_train_batch_size=4, max_steps=steps, save_steps=2,
        save_strategy="steps", learning_rate=1e-3, report_to="none", plot_loss=False, disable_tqdm=True,
    )  # fmt: skip
    trainer = Trainer(model=str(model), args=args, train_dataset=rows)
    trainer.train(**changes)
    return trainer


@pytest.fixture(params=FAMILIES)
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    library_model(request.param, **SMALL, **FAMILIES[request.param]).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_saved_and_sent_weights(model: Path, tmp_path: Path) -> None:
    """The files are those of save_pretrained; what weight sync sends has the names of the model."""
    trainer = trained(model, tmp_path / "out")
    trainer.save_model(str(tmp_path / "saved"))
    opened = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    opened.save_pretrained(tmp_path / "theirs")
    ours, theirs = (load_file(tmp_path / name / "model.safetensors") for name in ("saved", "theirs"))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())
    configs = [json.loads((tmp_path / name / "config.json").read_text()) for name in ("saved", "theirs")]
    assert configs[0]["architectures"] == configs[1]["architectures"] == [type(opened).__name__]
    sent = dict(FastsftEngine(trainer).get_per_tensor_param()[0])
    expected = by_files(opened, dict(opened.named_parameters()))
    assert sent.keys() == expected.keys()
    assert all(torch.equal(value, expected[name]) for name, value in sent.items())


def test_a_resumed_run_with_dropout_has_the_same_bits(model: Path, tmp_path: Path) -> None:
    whole = trained(model, tmp_path / "out").engine.named_parameters()
    checkpoint = str(tmp_path / "out" / "checkpoint-2")
    again = trained(model, tmp_path / "other", resume_from_checkpoint=checkpoint).engine.named_parameters()
    assert all(torch.equal(value, again[name]) for name, value in whole.items())
