"""Ranks that edit a model of transformers after training, and while it is trained; run by ranks.run_ranks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaForCausalLM, TrainerCallback

from fastsft import saving
from fastsft.arguments import TrainingArguments
from fastsft.runtime.launch import launch
from fastsft.trainer import Trainer
from saving_run import Conversations

SAVES: dict[str, Callable[[Any, Path], None]] = {
    "save_model": lambda trainer, path: trainer.save_model(str(path)),
    "save_model_directory": lambda trainer, path: saving.save_model_directory(trainer, path),
    "save_checkpoint": lambda trainer, path: saving.save_checkpoint(trainer, path),
    "safe": lambda trainer, path: saving.trainer_save_model_safe(trainer),
}


class Reading(TrainerCallback):
    """Notes the weights after each step; `halves`: then writes into them."""

    def __init__(self, halves: bool = False) -> None:
        self.seen: list[float] = []
        self.halves = halves

    def on_step_end(self, *_: Any, model: Any, **__: Any) -> None:
        self.seen.append(float(model.lm_head.weight.detach().abs().sum()))
        if self.halves:
            halve(model)


def halve(model: Any) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.5)


def make_trainer(source: Path, output: Path, fsdp: str) -> Trainer:
    args = TrainingArguments(
        output_dir=str(output), use_cpu=True, max_steps=2, learning_rate=0.1, per_device_train_batch_size=2,
        fsdp=fsdp, save_strategy="no", model_max_length=32, disable_tqdm=True, plot_loss=False,
        report_to="none",
    )  # fmt: skip
    return Trainer(LlamaForCausalLM.from_pretrained(source), args=args, train_dataset=Conversations())


def edit_and_save(groups: dict[str, str], source: Path, output: Path, fsdp: str) -> dict[str, Any]:
    """Each way of saving, after an edit that all ranks make; then one that rank 1 makes alone."""
    trainer = make_trainer(source, output, fsdp)
    reading = Reading()
    trainer.add_callback(reading)
    trainer.train()
    module, expected = trainer.model.module, {}
    trained = float(module.lm_head.weight.detach().abs().sum())
    for name, save in SAVES.items():
        halve(module)
        expected[name] = {key: value.clone() for key, value in module.state_dict().items()}
        save(trainer, output / name)
    if launch().rank == 1:
        halve(module)
    message = _message(lambda: trainer.save_model())
    return {"expected": expected, "alone": message, "seen": reading.seen, "trained": trained}


def write_in_training(groups: dict[str, str], source: Path, output: Path, fsdp: str) -> str:
    """What is said of weights that are written while several ranks train."""
    trainer = make_trainer(source, output, fsdp)
    trainer.add_callback(Reading(halves=True))
    return _message(trainer.train)


def _message(call: Callable[[], Any]) -> str:
    try:
        call()
    except ValueError as error:
        return str(error)
    return "nothing"
