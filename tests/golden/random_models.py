"""Tiny model directories with random weights, by transformers; the same for the same seed."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM


def write_random(folder: Path, settings: dict[str, Any], seed: int, tokenizer: Path | None = None) -> None:
    """Write configuration, float32 weights in files of 5 MB, and a copy of the tokenizer's files."""
    settings = dict(settings)
    config = AutoConfig.for_model(settings.pop("model_type"), **settings)
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():  # norm weights other than one and biases other than zero: errors in them show
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder, max_shard_size="5MB")
    for file in tokenizer.iterdir() if tokenizer else ():
        shutil.copyfile(file, folder / file.name)
