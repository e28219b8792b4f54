"""Writes README.md for an uploaded model, with the metadata that the hub reads."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Protocol

from fastsft.data.chat.labelling import labels_of
from fastsft.model.model_save import TrainedRun
from fastsft.runtime.output_files import replace_file
from fastsft.runtime.regular_files import read_text

_SHOWN = (
    "learning_rate", "lr_scheduler_type", "num_train_epochs", "max_steps", "per_device_train_batch_size",
    "gradient_accumulation_steps", "model_max_length", "seed", "bf16", "fp16", "weight_decay",
)  # fmt: skip


class CardRun(TrainedRun, Protocol):
    """The Trainer attributes that the model card reads."""

    @property
    def train_dataset(self) -> object: ...


def write_model_card(trainer: CardRun, directory: Path) -> None:
    """Write README.md into the model directory, unless the user has written one."""
    from huggingface_hub import ModelCardData

    target, mark = directory / "README.md", "Fine-tuned with fastsft."
    if os.path.lexists(target) and not _is_ours(target, mark):
        return
    source = _hub_name(trainer)
    is_adapter = trainer.model.adapter_facts() is not None
    library, tags = ("peft", ["lora"]) if is_adapter else ("transformers", [])
    data = ModelCardData(library_name=library, tags=["fastsft", "trainer", *tags], base_model=source)
    args = trainer.args
    lines = [
        "---", data.to_yaml(), "---", "", f"# {directory.absolute().name}", "",
        mark + (f" Base model: {source}." if source else ""), "", "| argument | value |", "|---|---|",
        *(f"| {name} | {getattr(args, name)} |" for name in _SHOWN),
        f"| ranks | {args.world_size} |", *_labels(trainer), "", *_results(trainer.state.log_history),
    ]  # fmt: skip
    replace_file(target, "\n".join(lines) + "\n")


def _labels(trainer: CardRun) -> list[str]:
    words = labels_of(trainer.train_dataset)
    return [] if words is None else [f"| labels | {words.replace('|', chr(92) + '|')} |"]


def _is_ours(path: Path, mark: str) -> bool:
    """Return True if the file is a card that fastsft wrote."""
    try:
        return mark in read_text(path)
    except ValueError:
        return False


def _hub_name(trainer: CardRun) -> str | None:
    """Return the base model's hub name if its directory is in huggingface_hub's cache; else None."""
    for part in trainer.model.source_directory.parts:
        if part.startswith("models--"):
            return part.removeprefix("models--").replace("--", "/")
    return None


def _results(history: list[dict[str, Any]]) -> list[str]:
    rows = [entry for entry in history if "loss" in entry or "eval_loss" in entry][-20:]
    if not rows:
        return []
    table = [
        f"| {entry['step']} | {_number(entry.get('loss'))} | {_number(entry.get('eval_loss'))} |"
        for entry in rows
    ]
    return ["| step | loss | evaluation loss |", "|---|---|---|", *table]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"
