"""Ranks that train a model of transformers that each has loaded; run by ranks.run_ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import LlamaForCausalLM

from fastsft.arguments import TrainingArguments
from fastsft.trainer import Trainer
from saving_run import Conversations


def train_to_the_best(groups: dict[str, str], model: Path, output: Path) -> dict[str, Any]:
    """Trains sharded, evaluates two sets, ends with the weights of the highest loss: the object's state."""
    module = LlamaForCausalLM.from_pretrained(model)
    args = TrainingArguments(
        output_dir=str(output), use_cpu=True, max_steps=4, learning_rate=0.3, fsdp="full_shard auto_wrap",
        fsdp_transformer_layer_cls_to_wrap="LlamaDecoderLayer", per_device_train_batch_size=2,
        eval_strategy="steps", eval_steps=1, save_strategy="best",
        metric_for_best_model="a_loss", greater_is_better=True,
        load_best_model_at_end=True, eval_loss="exact", model_max_length=32, disable_tqdm=True,
        plot_loss=False, save_total_limit=1,
    )  # fmt: skip
    data = Conversations()
    trainer = Trainer(module, args=args, train_dataset=data, eval_dataset={"a": data, "b": data})
    trainer.train()
    trainer.save_model()
    metrics = trainer.evaluate("a")
    return {
        "weights": {name: tensor.clone() for name, tensor in module.state_dict().items()},
        "reply": module.generate(torch.tensor([[5, 9, 33]]), max_new_tokens=6, do_sample=False),
        "best": (trainer.state.best_global_step, trainer.state.best_metric, metrics["eval_loss"]),
    }
