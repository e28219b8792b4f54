"""Two ranks train a model of transformers that each has loaded.

Usage: loaded_model_program.py MODEL OUTPUT
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from transformers import LlamaForCausalLM

from fastsft import launcher
from fastsft.arguments import TrainingArguments
from fastsft.trainer import Trainer
from saving_run import Conversations


def main(model: Path, output: Path) -> None:
    """Trains sharded, evaluates two sets, ends with the weights of the highest loss, writes the object."""
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
    torch.save(
        {
            "weights": module.state_dict(),
            "reply": module.generate(torch.tensor([[5, 9, 33]]), max_new_tokens=6, do_sample=False),
            "best": (trainer.state.best_global_step, trainer.state.best_metric, metrics["eval_a_loss"]),
        },
        output / f"{launcher.launch().rank}.pt",
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
