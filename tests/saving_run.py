"""A real Trainer on a tiny model, for the tests of saving; also a program for several ranks.

Usage: saving_run.py MODE MODEL OUTPUT, with torchrun's variables. `train` trains to the end, resuming from a
checkpoint when there is one; `fail` lets rank 1 fail while it saves and writes what every rank raised.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

from fastsft import checkpoint, launcher, saving
from fastsft.arguments import TrainingArguments
from fastsft.model import CausalLM
from fastsft.trainer import Trainer
from tiny_models import conversations


class Conversations:
    """Eight tokenised rows."""

    def __init__(self) -> None:
        self.native = conversations()

    def __len__(self) -> int:
        return len(self.native)


class Tokens:
    """What saving needs of a tokenizer."""

    eos_token_id, bos_token_id, pad_token_id = 2, 1, 0

    def save_pretrained(self, directory: str) -> None:
        Path(directory, "tokenizer_config.json").write_text("{}\n")


def make_trainer(model: Path, output: Path, **options: Any) -> Trainer:
    """Two conversations a micro-batch on one rank, two micro-batches a step, two steps an epoch."""
    flags = {
        "output_dir": str(output), "use_cpu": True, "gradient_accumulation_steps": 2, "num_train_epochs": 3,
        "per_device_train_batch_size": 2 // launcher.launch().world_size, "learning_rate": 0.01,
        "save_strategy": "steps", "save_steps": 2, "model_max_length": 32, "disable_tqdm": True,
        "logging_steps": 1, **options,
    }  # fmt: skip
    return Trainer(
        CausalLM.from_pretrained(str(model)),
        args=TrainingArguments(**flags),
        train_dataset=Conversations(),
        tokenizer=Tokens(),
    )


def train(model: Path, output: Path) -> None:
    trainer = make_trainer(model, output, fsdp="full_shard")
    trainer.train(resume_from_checkpoint=saving.newest_checkpoint(output))
    saving.trainer_save_model_safe(trainer)


def fail(model: Path, output: Path) -> None:
    trainer = make_trainer(model, output, fsdp="full_shard")
    rank = launcher.launch().rank

    def broken(*_: Any) -> Any:
        raise RuntimeError("the disk of rank 1 is full")

    if rank == 1:
        checkpoint.write_random_state = broken
    try:
        saving.save_checkpoint(trainer, output / "checkpoint-0")
        outcome = "no error"
    except RuntimeError as error:
        outcome = str(error)
    (output / f"outcome-{rank}.txt").write_text(outcome)


def main() -> None:
    warnings.simplefilter("error")
    mode, model, output = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    {"train": train, "fail": fail}[mode](model, output)
    launcher.leave()


if __name__ == "__main__":
    main()
