"""One data set in transformers' Trainer and in fastsft's: losses of both, unrounded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
import transformers.trainer

import fastsft
from fastsft.runtime.messages import collected

Item = dict[str, Any]
LENGTH = 12
SMALL = {
    "vocab_size": 50, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
    "initializer_range": 0.2, "use_cache": False,
}  # fmt: skip


def make_model(kind: str = "Llama", **config: Any) -> Any:
    torch.manual_seed(0)
    model_class = getattr(transformers, f"{kind}ForCausalLM")
    return model_class(model_class.config_class(**{**SMALL, **config}))


def plain_items(count: int = 8) -> list[Item]:
    """Prompts of four tokens, and what is learned after them."""
    generator = torch.Generator().manual_seed(1)
    items = []
    for _ in range(count):
        ids = torch.randint(3, 50, (LENGTH,), generator=generator)
        labels = ids.clone()
        labels[:4] = -100
        items.append({"input_ids": ids, "labels": labels})
    return items


def changed(change: Callable[[Item, int], Item]) -> list[Item]:
    return [{**item, **change(item, row)} for row, item in enumerate(plain_items())]


def options(directory: Path, **changes: Any) -> dict[str, Any]:
    return {
        "output_dir": str(directory), "use_cpu": True, "per_device_train_batch_size": 2,
        "per_device_eval_batch_size": 3, "gradient_accumulation_steps": 2, "num_train_epochs": 2,
        "learning_rate": 2e-3, "logging_steps": 1, "report_to": [], "save_strategy": "no",
        "disable_tqdm": True, "seed": 3, **changes,
    }  # fmt: skip


def losses_of(trainer: Any, items: list[Item]) -> list[float]:
    """Of the steps, and of an evaluation after them."""
    trainer.train()
    steps = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return [*steps, trainer.evaluate(items)["eval_loss"]]


def theirs(items: list[Item], directory: Path, model: Any = None, **changes: Any) -> list[float]:
    args, given = split(changes)
    trainer = transformers.Trainer(
        model or make_model(), transformers.TrainingArguments(**options(directory, **args)),
        train_dataset=items, **given,
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transformers.trainer, "round", lambda value, digits=None: value, raising=False)
        return losses_of(trainer, items)


def ours(items: list[Item], directory: Path, model: Any = None, **changes: Any) -> list[float]:
    args, given = split(changes)
    trainer = fastsft.Trainer(
        model or make_model(), fastsft.TrainingArguments(**options(directory, **args)),
        train_dataset=items, **given,
    )  # fmt: skip
    return losses_of(trainer, items)


def split(changes: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arguments of training, and those of the Trainer itself."""
    own = ("data_collator", "processing_class")
    return (
        {name: value for name, value in changes.items() if name not in own},
        {name: value for name, value in changes.items() if name in own},
    )


def on_rank(groups: dict[str, str], items: list[Item], directory: str, norm: str, average: bool) -> Any:
    """(theirs, ours) on each of several ranks; for run_ranks. norm: of fastsft."""
    shared = {"average_tokens_across_devices": average}
    return (
        theirs(items, Path(directory) / "theirs", **shared),
        ours(items, Path(directory) / "ours", loss_norm=norm, **shared),
    )


def smoothed_on_rank(groups: dict[str, str], directory: str, steps: int, average: bool) -> Any:
    """(theirs, ours, what ours told) with label smoothing, of rows with equally many targets."""
    items, shared = plain_items(8), {"average_tokens_across_devices": average, "label_smoothing_factor": 0.1}
    shared["gradient_accumulation_steps"] = steps
    expected = theirs(items, Path(directory) / "theirs", **shared)
    with collected() as notices:
        found = ours(items, Path(directory) / "ours", **shared)
    return expected, found, notices.told
