"""Small models of transformers, trained by its Trainer and by ours on the same rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM

from fastsft.arguments import TrainingArguments
from fastsft.trainer import Trainer
from padded_items import WIDTH, random_items
from tiny_models import write_model

FLAGS: dict[str, Any] = {
    "use_cpu": True, "max_steps": 4, "learning_rate": 0.001, "per_device_train_batch_size": 2, "seed": 3,
    "logging_steps": 1, "save_strategy": "no", "disable_tqdm": True, "report_to": "none",
}  # fmt: skip


class Recorded(transformers.Trainer):
    """Keeps the loss of each step unrounded."""

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        loss = super().training_step(*args, **kwargs)
        self.losses = [*getattr(self, "losses", ()), float(loss)]
        return loss


def load(folder: Path, kind: str = "untied", **options: Any) -> Any:
    return AutoModelForCausalLM.from_pretrained(write_model(folder / "model", kind), **options)


def ours(model: Any, folder: Path) -> Trainer:
    args = TrainingArguments(str(folder / "ours"), model_max_length=WIDTH, plot_loss=False, **FLAGS)
    return Trainer(model, args=args, train_dataset=random_items())


def their_losses(model: Any, folder: Path) -> list[float]:
    args = transformers.TrainingArguments(str(folder / "theirs"), **FLAGS)
    items = [{name: torch.tensor(value) for name, value in item.items()} for item in random_items()]
    trainer = Recorded(model, args=args, train_dataset=items)
    trainer.train()
    return trainer.losses


def our_losses(trainer: Trainer) -> list[float]:
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
