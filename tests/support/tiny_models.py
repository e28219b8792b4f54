"""Small model directories written by transformers, and conversations to train them on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from engines import new_engine, train_step
from fastsft import _C
from native_families import CONFIGS

STRATEGIES = list(_C.strategies())


def write_model(
    directory: Path, kind: str, dtype: str = "float32", max_shard_size: str = "5GB", **sizes: float
) -> Path:
    """A random model of `CONFIGS[kind]`; equal for equal arguments. sizes: those of another size."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.for_model(**{
        "vocab_size": 70, "hidden_size": 32, "intermediate_size": 56, "num_hidden_layers": 3,
        "num_attention_heads": 4, "max_position_embeddings": 64, "pad_token_id": 0, "initializer_range": 0.3,
        **CONFIGS[kind], **sizes,
    })  # fmt: skip
    model = AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():
        if parameter.dim() == 1:
            torch.nn.init.normal_(parameter, mean=1.0, std=0.1)
    model.to(getattr(torch, dtype)).save_pretrained(directory, max_shard_size=max_shard_size)
    return directory


def make_engine(directory: Path, **options: Any) -> Any:
    """An engine with the weights of `directory`."""
    engine = new_engine((directory / "config.json").read_text(), **options)
    _C.load_model(engine, str(directory))
    return engine


def conversations() -> Any:
    """Eight rows of random tokens whose second half is learned."""
    generator, dataset = np.random.default_rng(0), _C.TokenDataset()
    for length in [5, 9, 12, 6, 20, 3, 11, 8]:
        ids = generator.integers(0, 70, length).astype(np.int32)
        dataset.append(ids, [(length // 2, length)])
    return dataset


def train(engine: Any, steps: int) -> list[float]:
    """Optimizer steps on all rows, spread over the ranks; the losses."""
    dataset = conversations()
    rows = np.arange(len(dataset), dtype=np.int64)[engine.rank :: engine.world_size]
    weights = np.full(len(rows), 1.0 / dataset.target_counts().sum())
    return [
        train_step(engine, dataset, [rows], [weights], learning_rate=0.01, weight_decay=0.1).loss
        for _ in range(steps)
    ]


def weights_of(directory: Path) -> dict[str, Any]:
    """All tensors of a model directory, read by the safetensors library."""
    from safetensors.torch import load_file

    index = directory / "model.safetensors.index.json"
    names = ["model.safetensors"]
    if index.exists():
        names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    return {name: tensor for file in names for name, tensor in load_file(directory / file).items()}
