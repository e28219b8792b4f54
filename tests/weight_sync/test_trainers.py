"""FastsftEngine over Trainers: of the generic engine, of given objects, and with adapters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from peft import LoraConfig
from transformers import GPT2Config, GPT2LMHeadModel

import fastsft
from fastsft.weight_sync import (
    CheckpointCoordinator,
    FastsftEngine,
    Synchronizer,
    fsdp_save_state_dict,
    fsdp_upload_state_dict,
    sync_plan,
)
from trainer_pairs import FLAGS, VOCABULARY, WIDTH, Plain

REFUSED = "FastsftEngine: weights of a model with adapters are not sent"


def arguments(output: Path, **flags: Any) -> fastsft.TrainingArguments:
    return fastsft.TrainingArguments(
        str(output), **{"model_max_length": WIDTH, "plot_loss": False, **FLAGS, **flags}
    )


def generic_directory(folder: Path) -> str:
    """A tiny GPT-2, which has no native engine."""
    config = GPT2Config(vocab_size=VOCABULARY, n_embd=16, n_layer=1, n_head=2, n_positions=64)
    GPT2LMHeadModel(config).save_pretrained(folder)
    return str(folder)


def test_adapters_of_the_generic_engine_are_refused(tmp_path: Path) -> None:
    lora = LoraConfig(r=2, target_modules=["c_attn"], task_type="CAUSAL_LM")
    args = arguments(tmp_path / "out")
    trainer = fastsft.Trainer(
        generic_directory(tmp_path / "base"), args, train_dataset=Plain(), peft_config=lora
    )
    engine = FastsftEngine(trainer)
    with pytest.raises(ValueError, match=REFUSED):
        sync_plan(engine)
    with pytest.raises(ValueError, match=REFUSED):
        fsdp_save_state_dict(engine, str(tmp_path / "save"), 1, CheckpointCoordinator(), None, format="hf")
    with pytest.raises(ValueError, match=REFUSED):
        fsdp_upload_state_dict(engine, Synchronizer(), 1, None)
    with pytest.raises(ValueError, match=REFUSED):
        engine.get_per_tensor_param()
