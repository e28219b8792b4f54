"""What is known at the start is refused at the start, not after hours of training."""

from __future__ import annotations

from typing import Any

from fastsft.arguments import TrainingArguments


def check_before_training(model: Any, args: TrainingArguments, eval_dataset: Any) -> None:
    """ValueError for a model that is none of ours, and for evaluation without data."""
    if not hasattr(model, "build"):
        raise ValueError(
            f"Trainer: expected model to be a fastsft.model.CausalLM or a directory, got "
            f"{type(model).__name__}; CausalLM.from_pretrained(directory) makes one"
        )
    if eval_dataset is None and (args.eval_strategy != "no" or args.eval_on_start):
        wanted = "eval_on_start" if args.eval_on_start else f"eval_strategy {args.eval_strategy}"
        raise ValueError(
            f"--{wanted} needs data to evaluate on: give --eval_data_path (eval_dataset of Trainer)"
        )
