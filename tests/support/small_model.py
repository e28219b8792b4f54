"""A Llama of 601 pieces, for tests of files, ranks and signals: a step of the recorded models goes into their
32,000."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from fastsft import _C
from fastsft.cli.demo_model import train_tokenizer
from golden_text import GOLDEN

PIECES = 601  # which no number of ranks divides
DATA = GOLDEN / "trainer" / "data" / "first48.json"


def write_small_data(path: Path) -> Path:
    """The conversations of DATA with texts of at most 60 characters: a step takes a quarter of the time."""
    records = json.loads(DATA.read_text())
    for turn in (turn for record in records for turn in record["conversations"]):
        turn["value"] = turn["value"][:60]
    path.write_text(json.dumps(records))
    return path


def write_small_model(directory: Path) -> Path:
    """The form of the recorded `model_untied` with a small vocabulary; equal in every call."""
    records = json.loads(DATA.read_text())
    texts = [turn["value"] for record in records for turn in record["conversations"]]
    train_tokenizer(directory, texts, vocab_size=PIECES, model_max_length=2048)
    config = json.loads((GOLDEN / "trainer" / "model_untied" / "config.json").read_text())
    config["vocab_size"] = PIECES
    (directory / "config.json").write_text(json.dumps(config))
    draw = torch.Generator().manual_seed(0)
    weights = {
        name: torch.randn(shape, generator=draw) * 0.1 + (len(shape) == 1)
        for name, shape in _C.parameter_shapes(json.dumps(config))
    }
    save_file(weights, directory / "model.safetensors", {"format": "pt"})
    return directory
