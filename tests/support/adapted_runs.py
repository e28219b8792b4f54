"""Runs of a PeftModel with transformers' Trainer and with fastsft's, on one rank or several."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model

from fastsft.runtime.launch import launch
from trainer_pairs import Plain, curve, model, ours


def config(**fields: Any) -> LoraConfig:
    given = {"target_modules": ["q_proj", "down_proj"], "r": 4, "lora_alpha": 8, **fields}
    return LoraConfig(task_type="CAUSAL_LM", **given)


def wrapped(seed: int = 4, **fields: Any) -> Any:
    """A PeftModel with random adapters; A's and B's are those of `seed`."""
    base = model()
    torch.manual_seed(seed)
    made = get_peft_model(base, config(**fields))
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.1)
    return made


def trained(module: Any) -> dict[str, torch.Tensor]:
    return {name: each.detach().clone() for name, each in module.named_parameters() if each.requires_grad}


def train_on_ranks(groups: dict[str, str], output: Path, fsdp: str) -> tuple[list[float], Any, Any]:
    """Each rank has drawn adapters of its own: losses, trained adapters, predictions."""
    module = wrapped(seed=4 + launch().rank)
    flags = {"fsdp": fsdp, "per_device_train_batch_size": 1, "per_device_eval_batch_size": 1}
    trainer = ours(output, Plain(), Plain(4), module=module, **flags)
    trainer.train()
    predicted = trainer.predict(Plain(4)).predictions
    trainer.save_model()
    return curve(trainer), trained(module), predicted
