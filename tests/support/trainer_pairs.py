"""The same script with transformers' Trainer and with fastsft's: unrounded losses of both."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM

import fastsft

VOCABULARY, WIDTH = 64, 24
Make = Callable[[], Any]

FLAGS: dict[str, Any] = {
    "use_cpu": True, "per_device_train_batch_size": 2, "per_device_eval_batch_size": 3, "num_train_epochs": 2,
    "learning_rate": 0.01, "logging_steps": 1, "save_strategy": "no", "report_to": "none",
    "disable_tqdm": True, "lr_scheduler_type": "constant",
}  # fmt: skip


def model(positions: int = 64, seed: int = 0, vocabulary: int = VOCABULARY) -> LlamaForCausalLM:
    """A tiny Llama, equal for equal arguments."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocabulary, hidden_size=16, intermediate_size=24, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=positions,
        initializer_range=0.3, pad_token_id=0,
    )  # fmt: skip
    config.use_cache = False
    return LlamaForCausalLM(config)


def item(seed: int, length: int = 0, width: int = WIDTH) -> dict[str, torch.Tensor]:
    """A row of random ids padded to `width`; the second half is learned."""
    generator = np.random.default_rng(seed)
    length = length or int(generator.integers(6, width))
    ids = torch.zeros(width, dtype=torch.long)
    ids[:length] = torch.as_tensor(generator.integers(1, VOCABULARY, length))
    labels = ids.clone()
    labels[: length // 2] = labels[length:] = -100
    return {"input_ids": ids, "labels": labels, "attention_mask": torch.arange(width) < length}


class Plain(torch.utils.data.Dataset):
    """Rows that never change; `reads` says which were read, in which order, in this process."""

    def __init__(self, size: int = 8) -> None:
        self.size, self.reads = size, []

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, row: int) -> dict[str, torch.Tensor]:
        self.note(row)
        return item(row)

    def note(self, row: int) -> None:
        if row >= self.size:
            raise IndexError(row)
        self.reads.append(row)


class Drawing(Plain):
    """Rows that depend on random numbers drawn when they are read. source: whose."""

    def __init__(self, source: str, size: int = 8) -> None:
        super().__init__(size)
        self.source, self.own = source, random.Random(5)

    def __getitem__(self, row: int) -> dict[str, torch.Tensor]:
        self.note(row)
        drawn = {
            "python": lambda: random.randrange(1000),
            "numpy": lambda: int(np.random.randint(1000)),
            "torch": lambda: int(torch.randint(1000, ()).item()),
            "own": lambda: self.own.randrange(1000),
        }[self.source]()
        return item(1000 * row + drawn)


def theirs(
    output: Path,
    train: Any,
    evaluation: Any = None,
    *,
    collator: Any = None,
    module: Any = None,
    **flags: Any,
) -> transformers.Trainer:
    """transformers' Trainer."""
    args = transformers.TrainingArguments(str(output), **{**FLAGS, **flags})
    return transformers.Trainer(
        model() if module is None else module, args, collator or transformers.default_data_collator, train,
        evaluation,
    )  # fmt: skip


def ours(
    output: Path,
    train: Any,
    evaluation: Any = None,
    *,
    collator: Any = None,
    module: Any = None,
    **flags: Any,
) -> fastsft.Trainer:
    """fastsft's."""
    values = {"model_max_length": WIDTH, "plot_loss": False, **FLAGS, **flags}
    args = fastsft.TrainingArguments(str(output), **values)
    return fastsft.Trainer(model() if module is None else module, args, collator, train, evaluation)


def unrounded(patch: pytest.MonkeyPatch) -> None:
    """transformers logs losses as they are."""
    patch.setattr("transformers.trainer.round", lambda value, digits=0: value, raising=False)


def curve(trainer: Any, name: str = "loss") -> list[float]:
    """What was logged of `name`."""
    return [entry[name] for entry in trainer.state.log_history if name in entry]


def losses(trainer: Any, **how: Any) -> list[float]:
    """Of each step of `train()`."""
    trainer.train(**how)
    return curve(trainer)


def check_equal(found: list[float], expected: list[float], tolerance: float = 1e-5) -> None:
    """Curves of one length, value by value."""
    assert len(found) == len(expected) > 0
    np.testing.assert_allclose(found, expected, rtol=tolerance)
