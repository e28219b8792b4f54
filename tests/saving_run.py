"""A real Trainer on a tiny model, for the tests of saving; also a program for several ranks.

Usage: saving_run.py MODE MODEL OUTPUT, with torchrun's variables. `train` trains to the end, resuming from a
checkpoint when there is one; `fail` lets rank 1 fail while it saves and writes what every rank raised; `ways`
saves in every way, with a rank that fails behind the training, and on nodes without a common disk.
"""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from typing import Any

from fastsft import checkpoint_content, launcher, saving
from fastsft.arguments import TrainingArguments
from fastsft.checkpoint_saver import CheckpointSaver
from fastsft.model import CausalLM
from fastsft.trainer import Trainer
from tiny_models import conversations
from tiny_models import train as train_engine


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
        "logging_steps": 1, "plot_loss": False, **options,
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
        checkpoint_content.CheckpointContent.write_random_state = broken
    try:
        saving.save_checkpoint(trainer, output / "checkpoint-0")
        outcome = "no error"
    except RuntimeError as error:
        outcome = str(error)
    (output / f"outcome-{rank}.txt").write_text(outcome)


def ways(model: Path, output: Path) -> None:
    rank = launcher.launch().rank
    for mode in ("parallel", "stream"):
        trainer = make_trainer(model, output / mode, fsdp="full_shard", save_mode=mode, max_shard_size="10KB")
        saving.save_model_directory(trainer, output / mode / "final")
        train_engine(trainer.engine, 1)
        saving.save_checkpoint(trainer, output / mode / "checkpoint-0")
    saver = CheckpointSaver(trainer)
    write = checkpoint_content.CheckpointContent.write_random_state

    def broken(*_: Any) -> Any:
        raise RuntimeError("the disk of rank 1 is full")

    if rank == 1:
        checkpoint_content.CheckpointContent.write_random_state = broken
    saver.save(output / "parallel" / "checkpoint-1")
    for step in range(10_000):
        train_engine(trainer.engine, 1)
        try:
            saver.poll()
        except RuntimeError as error:
            (output / f"outcome-{rank}.txt").write_text(f"{step} {error}")
            break
    checkpoint_content.CheckpointContent.write_random_state = write
    saver.save(output / "parallel" / "checkpoint-2")
    saver.wait()
    nodes(model, output)


def nodes(model: Path, output: Path) -> None:
    """From here on every rank is a machine with a disk of its own."""
    own = output / f"node-{launcher.launch().rank}"
    os.environ.update(LOCAL_RANK="0", LOCAL_WORLD_SIZE="1")
    trainer = make_trainer(model, own, fsdp="full_shard", save_on_each_node=True)
    train_engine(trainer.engine, 1)
    saving.save_checkpoint(trainer, own / "checkpoint-0")
    saving.save_model_directory(trainer, own)
    saving.load_checkpoint(trainer, own / "checkpoint-0")


def main() -> None:
    warnings.simplefilter("error")
    mode, model, output = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    {"train": train, "fail": fail, "ways": ways}[mode](model, output)
    launcher.leave()


if __name__ == "__main__":
    main()
